"""The tree rollout on a host-side task: keys, order of score and advance, choices, failures."""

import numpy as np
import pytest

from atgrpo_jax.rollout import tree
from atgrpo_jax.rollout.record import check_keys, concatenate, select
from tests.runs import toy
from tests.scripted_sampler import ScriptedSampler, digit, policy
from tests.toy_task import CHAIN, LONE, PAIR, ToyTask

TEAM = {"team": policy()}


def roll(workflow=CHAIN, reply=digit, step=0, task=None, policies=TEAM, **changes):
    config = toy(**changes)
    router = {agent.name: next(iter(policies)) for agent in workflow.agents}
    if len(policies) > 1:
        router = {agent.name: agent.name for agent in workflow.agents}
    task = task or ToyTask()
    sampler = ScriptedSampler(reply)
    return tree.rollout(task, workflow, policies, router, sampler, config, step), task, sampler


def test_groups_are_keyed_by_environment_agent_and_turn():
    rollout, _, _ = roll()
    every = concatenate([record for records in rollout.groups.values() for record in records])
    check_keys(every)
    assert set(every.turn_B) == {0, 1, 2}
    assert set(every.agent_B) == {0, 1}
    assert every.reward_BxK.shape[1] == 4
    doubled = select(every, np.array([0, 0, 1]))
    with pytest.raises(ValueError, match="occurs more than once"):
        check_keys(doubled)


def test_one_prompt_a_group_and_branches_of_different_keys():
    _, _, sampler = roll()
    for _, prompts, keys in sampler.calls:
        assert len(prompts) == len(keys)
        assert len(np.unique(keys.reshape(-1, 2), axis=0)) == keys.shape[0] * keys.shape[1]
    seen = np.concatenate([keys.reshape(-1, 2) for _, _, keys in sampler.calls])
    assert len(np.unique(seen, axis=0)) == len(seen)


def test_the_chosen_branch_alone_moves_the_state_and_the_next_agent_sees_it():
    rollout, _, sampler = roll(workflow=CHAIN, rollout__turns=1)
    first = rollout.groups["first"][0]
    seen = dict(zip(rollout.groups["second"][0].environment_B, sampler.calls[1][1], strict=True))
    assert len(seen) > 2
    for b, e in enumerate(first.environment_B):
        if e in seen:
            ids = first.response_BxKxR[b, first.chosen_B[b]]
            assert seen[e].split()[-1] == TEAM["team"].chat.decode(ids)


def test_all_agents_of_a_stage_are_scored_before_the_state_moves():
    _, task, _ = roll(workflow=PAIR, rollout__turns=2)
    kinds = [entry[0] for entry in task.log]
    assert kinds == ["score", "score", "advance"] * 2
    assert task.log[0][2] is task.log[1][2] is task.log[2][2]
    assert task.log[2][1] == ("left", "right")
    assert task.log[3][2] is not task.log[2][2]


def secret_or_not(text, k, key):
    """Branches 1 and 3 are right."""
    return text.split()[2] if k % 2 else "x"


def test_greedy_takes_the_best_and_breaks_ties_by_the_stream_not_by_position():
    chosen = []
    for step in range(20):
        rollout, _, _ = roll(workflow=LONE, reply=secret_or_not, step=step, rollout__turns=1)
        chosen += rollout.groups["solo"][0].chosen_B.tolist()
    assert set(chosen) == {1, 3}
    assert 0.3 < np.mean(np.array(chosen) == 1) < 0.7


def test_first_and_sampled_and_random_advance():
    first, _, _ = roll(
        workflow=LONE, reply=secret_or_not, rollout__turns=1, rollout__advance="first"
    )
    assert (first.groups["solo"][0].chosen_B == 0).all()
    for changes in ({"rollout__advance": "sampled"}, {"rollout__random_advance": 1.0}):
        chosen = []
        for step in range(10):
            rollout, _, _ = roll(
                workflow=LONE, reply=secret_or_not, step=step, rollout__turns=1, **changes
            )
            chosen += rollout.groups["solo"][0].chosen_B.tolist()
        assert set(chosen) == {0, 1, 2, 3}


def test_finished_environments_leave_no_samples():
    def reply(text, k, key):
        secret, turn = int(text.split()[2]), int(text.split()[1])
        done_after = {0: 0, 1: 1}.get(secret % 3, 9)
        return str(secret) if turn >= done_after else "x"

    rollout, _, sampler = roll(
        workflow=LONE, reply=reply, rollout__environments=12, rollout__turns=4
    )
    groups = rollout.groups["solo"][0]
    counts = np.bincount(groups.environment_B, minlength=12)
    assert set(counts) == {1, 2, 4}
    generated = sum(keys.shape[0] * keys.shape[1] for _, _, keys in sampler.calls)
    assert groups.member_BxK.sum() == generated == groups.member_BxK.size


def test_a_failed_score_drops_the_member_and_the_rest_keep_their_statistics():
    def reply(text, k, key):
        return {0: "!", 1: text.split()[2], 2: "x", 3: "x"}[k]

    rollout, _, _ = roll(workflow=LONE, reply=reply, rollout__turns=1, advantage__scale="none")
    groups = rollout.groups["solo"][0]
    np.testing.assert_array_equal(groups.member_BxK, [[False, True, True, True]] * 6)
    np.testing.assert_allclose(groups.advantage_BxK, [[0, 4 / 3, -2 / 3, -2 / 3]] * 6, rtol=1e-6)
    assert (groups.chosen_B == 1).all()
    assert rollout.statistics["rollout/failed"] == 0.25


def test_an_aborted_request_is_no_sample():
    def reply(text, k, key):
        return "ABORT" if k == 2 else digit(text, k, key)

    rollout, _, _ = roll(workflow=LONE, reply=reply, rollout__turns=1)
    assert not rollout.groups["solo"][0].member_BxK[:, 2].any()
    assert rollout.groups["solo"][0].member_BxK[:, [0, 1, 3]].all()


def test_an_environment_without_any_score_ends():
    def reply(text, k, key):
        return "!" if int(text.split()[2]) % 2 else "x"

    rollout, _, _ = roll(workflow=LONE, reply=reply, rollout__environments=12)
    groups = rollout.groups["solo"][0]
    secret = groups.prompt_BxS  # the secret decides; environments that fail appear once
    counts = np.bincount(groups.environment_B, minlength=12)
    assert set(counts) == {1, 3}
    assert (groups.chosen_B[groups.member_BxK.sum(-1) == 0] == -1).all()
    assert secret.shape[0] == counts.sum()


def test_too_many_failures_stop_the_run_in_one_line():
    with pytest.raises(RuntimeError, match=r"24 of 24 candidates .* rollout.max_failure_rate=0.5"):
        roll(workflow=LONE, reply=lambda *_: "!", rollout__max_failure_rate=0.5)


def test_an_error_of_the_grader_is_not_hidden():
    with pytest.raises(ConnectionError):
        roll(workflow=LONE, task=ToyTask(score_error=ConnectionError("grader lost")))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1.5])
def test_a_reward_that_is_no_number_in_range_never_reaches_the_advantage(bad):
    class Broken(ToyTask):
        def _grade(self, state, replies, live_E):
            scores = super()._grade(state, replies, live_E)
            scores.parts["match"][:, 1] = bad
            return scores

    rollout, _, _ = roll(workflow=LONE, task=Broken(), rollout__turns=1)
    groups = rollout.groups["solo"][0]
    assert not groups.member_BxK[:, 1].any()
    assert np.isfinite(groups.advantage_BxK).all()
    assert np.isfinite(groups.reward_BxK).all()


def test_a_step_replayed_alone_is_the_same_and_another_step_is_not():
    one, other = roll(step=7)[0], roll(step=8)[0]
    again = roll(step=7)[0]
    for name in ("first", "second"):
        a, b = one.groups[name][0], again.groups[name][0]
        np.testing.assert_array_equal(a.response_BxKxR, b.response_BxKxR)
        np.testing.assert_array_equal(a.advantage_BxK, b.advantage_BxK)
        np.testing.assert_array_equal(a.chosen_B, b.chosen_B)
    width = min(
        one.groups["first"][0].prompt_BxS.shape[0], other.groups["first"][0].prompt_BxS.shape[0]
    )
    a, b = (r.groups["first"][0].response_BxKxR[:width] for r in (one, other))
    assert (a != b).any()


def test_roles_are_routed_to_their_own_policy_and_version():
    policies = {"first": policy("first", 3), "second": policy("second", 5)}
    rollout, _, sampler = roll(policies=policies)
    assert (rollout.groups["first"][0].weight_version_B == 3).all()
    assert (rollout.groups["second"][0].weight_version_B == 5).all()
    assert [call[0] for call in sampler.calls] == ["first", "second"] * 3


def test_trees_hold_every_branch_and_which_one_advanced():
    rollout, _, _ = roll(workflow=PAIR)
    assert [tree["environment"] for tree in rollout.trees] == [0, 1]
    for tree_ in rollout.trees:
        for node in tree_["nodes"]:
            assert len(node["responses"]) == 4
            best = max(response["reward"] for response in node["responses"])
            assert node["responses"][node["advanced"]]["reward"] == best
            advantages = [response["advantage"] for response in node["responses"]]
            assert abs(sum(advantages)) < 1e-4
