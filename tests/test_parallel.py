"""The parallel rollout: whole trajectories, one return each, grouped by environment."""

import numpy as np
import pytest

from atgrpo_jax.rollout import parallel, tree
from atgrpo_jax.rollout.record import concatenate, singles
from tests.runs import toy
from tests.scripted_sampler import ScriptedSampler, digit, policy
from tests.toy_task import CHAIN, LONE, PAIR, ToyTask


def roll(module=parallel, workflow=CHAIN, reply=digit, step=0, **changes):
    router = {agent.name: "team" for agent in workflow.agents}
    sampler = ScriptedSampler(reply)
    result = module.rollout(
        ToyTask(), workflow, {"team": policy()}, router, sampler, toy(**changes), step
    )
    return result, sampler


def test_one_agent_and_one_turn_equal_the_tree_bit_for_bit():
    one, _ = roll(tree, LONE, rollout__turns=1)
    other, _ = roll(parallel, LONE, rollout__turns=1)
    (left,), (right,) = one.groups["solo"], other.groups["solo"]
    for name in vars(left):
        if name in ("parts", "chosen_B"):
            continue
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)
    assert (left.advantage_BxK != 0).any()


def trajectories(rollout, branches=4):
    """(environment, branch) -> advantages and rewards of all its samples."""
    found = {}
    for records in rollout.groups.values():
        for record in records:
            if record.member_BxK.shape[1] == branches:
                for b, e in enumerate(record.environment_B):
                    for k in range(branches):
                        found.setdefault((e, k), []).append(
                            (record.reward_BxK[b, k], record.advantage_BxK[b, k])
                        )
    return found


def test_every_sample_of_a_trajectory_carries_its_return_and_advantage():
    rollout, _ = roll(rollout__turns=2)
    shared = trajectories(rollout)
    first = rollout.groups["first"][0]
    np.testing.assert_allclose(first.advantage_BxK.sum(-1), 0, atol=1e-5)
    for record in (*rollout.groups["first"][1:], *rollout.groups["second"]):
        assert record.member_BxK.shape[1] == 1
        for b, e in enumerate(record.environment_B):
            known = {pair[0] for k in range(4) for pair in shared[(e, k)]}
            assert record.reward_BxK[b, 0] in known


def test_return_is_outcome_plus_mean_local_reward_by_hand():
    def reply(text, k, key):
        return text.split()[2] if k == 1 else "x"

    rollout, _ = roll(workflow=CHAIN, reply=reply, rollout__turns=1)
    first = rollout.groups["first"][0]
    # Branch 1 solves with the first agent's reply alone: outcome 1 + local 1. The others: 0.
    np.testing.assert_allclose(first.reward_BxK, [[0, 2, 0, 0]] * 6)
    np.testing.assert_allclose(
        first.advantage_BxK, [[-(3**-0.5), 3**0.5, -(3**-0.5), -(3**-0.5)]] * 6, rtol=1e-5
    )


def test_trajectories_go_their_own_ways():
    _, sampler = roll(workflow=CHAIN, rollout__turns=2)
    sizes = [keys.shape[:2] for _, _, keys in sampler.calls]
    assert sizes[0] == (6, 4)
    assert all(size[1] == 1 and size[0] > 6 for size in sizes[1:])
    assert len(set(sampler.calls[1][1])) > 6


def test_streams_are_those_of_the_tree():
    _, one = roll(tree, PAIR, rollout__turns=1)
    _, other = roll(parallel, PAIR, rollout__turns=1)
    for left, right in zip(one.calls, other.calls, strict=True):
        np.testing.assert_array_equal(left[2], right[2])


def test_a_failed_score_ends_and_drops_the_whole_trajectory():
    def reply(text, k, key):
        first = text.split()[0] == "first"
        return "!" if first and k == 2 else "x" if k % 2 else text.split()[2]

    rollout, _ = roll(workflow=CHAIN, reply=reply, rollout__turns=1)
    first = rollout.groups["first"][0]
    np.testing.assert_array_equal(first.member_BxK[:, 2], False)
    assert (first.advantage_BxK[:, 2] == 0).all()
    with pytest.raises(RuntimeError, match="could not be sampled or scored"):
        roll(workflow=CHAIN, reply=reply, rollout__turns=1, rollout__max_failure_rate=0.01)


def test_singles_split_groups_and_leave_dropped_members_out():
    def reply(text, k, key):
        return "!" if k == 2 else digit(text, k, key)

    rollout, _ = roll(workflow=LONE, reply=reply, rollout__turns=2)
    split = [singles(record) for record in rollout.groups["solo"]]
    joined = concatenate(split)
    assert joined.member_BxK.shape[1] == 1
    assert joined.member_BxK.all()
    total = sum(int(record.member_BxK.sum()) for record in rollout.groups["solo"])
    assert len(joined) == total
