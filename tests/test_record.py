"""Records of groups: joined and split without losing anything."""

from dataclasses import replace

import numpy as np
import pytest

from atgrpo_jax.rollout.record import concatenate, join_prompts, select, singles
from tests.tiny import groups


def responses(record):
    """Every member as (key, prompt, response, reward, advantage), sorted."""
    found = []
    for b, k in np.argwhere(record.member_BxK):
        key = [int(record.environment_B[b]), int(record.agent_B[b]), int(record.turn_B[b])]
        prompt = record.prompt_BxS[b, : record.prompt_length_B[b]].tolist()
        response = record.response_BxKxR[b, k, record.mask_BxKxR[b, k]].tolist()
        numbers = float(record.reward_BxK[b, k]), float(record.advantage_BxK[b, k])
        found.append((key, prompt, response, numbers, float(record.logprob_BxKxR[b, k, 0])))
    return sorted(found)


def repeated():
    """Seven groups whose members fall apart into singles, three keys sharing prompts."""
    data = groups(7, branches=5)
    member = data.member_BxK.copy()
    member[2, 1:3] = False
    return replace(data, member_BxK=member, agent_B=np.array([0, 0, 1, 0, 1, 0, 0], np.int32))


@pytest.mark.parametrize("members", [2, 5, 8])
def test_joining_singles_by_prompt_loses_nothing(members):
    data = repeated()
    apart = singles(data)
    order = np.random.default_rng(0).permutation(len(apart))
    mixed = concatenate([select(apart, order[:20]), select(apart, order[20:])])
    joined = join_prompts(mixed, members)
    assert responses(joined) == responses(data)
    assert joined.member_BxK.shape == (
        sum(-(-n // members) for n in (5, 5, 3, 5, 5, 5, 5)),
        members,
    )
    assert (joined.advantage_BxK[~joined.member_BxK] == 0).all()


def test_equal_prompts_of_other_keys_stay_apart():
    data = singles(groups(1, branches=4))
    data = replace(data, turn_B=np.array([0, 1, 0, 1], np.int32))
    joined = join_prompts(data, 4)
    assert joined.member_BxK.sum(-1).tolist() == [2, 2]
    assert joined.turn_B.tolist() == [0, 1]


def test_other_prompts_of_equal_keys_stay_apart():
    data = singles(groups(3, branches=2))
    prompts = data.prompt_BxS.copy()
    prompts[2:] = prompts[2:] % 7 + 10
    data = replace(
        data,
        environment_B=np.zeros(6, np.int32),
        prompt_BxS=prompts,
        prompt_length_B=np.full(6, 3, np.int32),
    )
    joined = join_prompts(data, 6)
    kinds = {data.prompt_BxS[b, :3].tobytes() for b in range(6)}
    assert len(joined) == len(kinds) == 3
    assert responses(joined) == responses(data)
