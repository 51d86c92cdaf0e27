"""The in-process sampler against the learner's log-probabilities and known distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from atgrpo_jax.mesh import AXES, make_mesh, shard
from atgrpo_jax.policy import Policy
from atgrpo_jax.samplers.base import LENGTH, STOP
from atgrpo_jax.samplers.jax_sampler import JaxSampler, generate, prompt_bucket, sample_token
from atgrpo_jax.update import Batch, row_logprobs
from tests.tiny import CONFIG, TokenChat, params

ONE = Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1, 1), AXES)


def sampler(sequences=32, mesh=ONE):
    return JaxSampler(mesh, sequences, 32)


def policy(**fields):
    return Policy("team", CONFIG, TokenChat(), params(), **fields)


def keys(count, branches, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 2**32, (count, branches, 2), dtype=np.uint32)


def prompts(count, seed=0):
    random = np.random.default_rng(seed)
    return [random.integers(6, 40, random.integers(2, 20)).astype(np.int32) for _ in range(count)]


def sample(count=5, branches=4, temperature=1.0, length=8, seed=0, **fields):
    return sampler().sample(
        policy(**fields),
        prompts(count),
        keys(count, branches, seed),
        temperature=temperature,
        max_new_tokens=length,
    )


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_logprobs_agree_with_the_learner(temperature):
    got = sample(temperature=temperature)
    rows = prompts(5)
    prompt = np.zeros((5, 32), np.int32)
    for i, row in enumerate(rows):
        prompt[i, : len(row)] = row
    batch = Batch(
        prompt,
        np.arange(32) < np.array([[len(row)] for row in rows]),
        got.token_ids_BxKxR,
        got.mask_BxKxR,
        np.zeros((5, 4)),
        np.ones((5, 4)),
        got.logprob_BxKxR,
        got.logprob_BxKxR,
    )
    learner, _ = row_logprobs(CONFIG, params(), batch, jnp.float32(temperature))
    gap = np.abs(np.where(got.mask_BxKxR, learner - got.logprob_BxKxR, 0))
    assert gap.max() < 1e-4
    assert np.abs(got.logprob_BxKxR).max() > 0.1


def test_mask_covers_the_stop_token_and_nothing_after():
    got = sample(count=40, branches=8)
    finished = got.finish_BxK == STOP
    assert finished.any()
    assert (~finished).any()
    length = got.mask_BxKxR.sum(-1)
    for b, k in np.ndindex(got.finish_BxK.shape):
        ids = got.token_ids_BxKxR[b, k, : length[b, k]]
        stops = np.isin(ids, TokenChat.stop_ids)
        assert not stops[:-1].any()
        assert stops[-1] == finished[b, k]
        assert got.mask_BxKxR[b, k, : length[b, k]].all()
        if got.finish_BxK[b, k] == LENGTH:
            assert length[b, k] == 8


def test_a_branch_does_not_depend_on_the_rest_of_the_batch():
    whole = sample(count=9, branches=4)
    alone = sampler().sample(
        policy(), prompts(9)[6:7], keys(9, 4)[6:7, 2:3], temperature=1.0, max_new_tokens=8
    )
    mask = whole.mask_BxKxR[6, 2]
    np.testing.assert_array_equal(alone.mask_BxKxR[0, 0], mask)
    np.testing.assert_array_equal(alone.token_ids_BxKxR[0, 0], whole.token_ids_BxKxR[6, 2])
    np.testing.assert_allclose(alone.logprob_BxKxR[0, 0], whole.logprob_BxKxR[6, 2], atol=1e-5)


def test_branches_differ_and_repeat_with_their_keys():
    first, again, other = sample(), sample(), sample(seed=1)
    np.testing.assert_array_equal(first.token_ids_BxKxR, again.token_ids_BxKxR)
    assert (first.token_ids_BxKxR != other.token_ids_BxKxR).any()
    assert (first.token_ids_BxKxR[:, 0] != first.token_ids_BxKxR[:, 1]).any()


def test_temperature_zero_is_greedy():
    got = sample(temperature=0.0)
    np.testing.assert_array_equal(got.token_ids_BxKxR[:, :1], got.token_ids_BxKxR[:, 1:2])


def test_draws_follow_the_distribution():
    logits = jnp.log(jnp.array([0.5, 0.0, 0.25, 0.25, 0.0]))
    uniform = (jnp.arange(4000) + 0.5) / 4000
    token, logprob = sample_token(jnp.tile(logits, (4000, 1)), uniform, jnp.float32(1.0))
    np.testing.assert_allclose(np.bincount(token, minlength=5) / 4000, jnp.exp(logits), atol=1e-3)
    np.testing.assert_allclose(logprob, logits[token], atol=1e-6)


def test_no_token_of_probability_zero_at_the_ends():
    logits = jnp.array([[-jnp.inf, 0.3, 0.1, -jnp.inf]])
    for uniform in (0.0, 1.0 - 2**-24, 1.0):
        token, _ = sample_token(logits, jnp.array([uniform]), jnp.float32(1.0))
        assert token[0] in (1, 2)


def test_prompt_beyond_the_context_is_one_clear_line():
    with pytest.raises(ValueError, match="exceeds the context of 128 tokens"):
        sampler().sample(policy(), [np.arange(125)], keys(1, 2), temperature=1.0, max_new_tokens=8)


def test_weight_version_is_the_policy_version():
    assert (sample(version=7).weight_version_B == 7).all()


def test_one_compilation_whatever_the_batch():
    generate.clear_cache()
    for count in range(1, 40, 3):
        assert sample(count=count, branches=2).token_ids_BxKxR.shape == (count, 2, 8)
    assert generate._cache_size() == 1


def test_few_prompt_lengths():
    lengths = {prompt_bucket(n, 64) for n in range(1, 1025)}
    assert lengths == {64, 96, 128, 160, 192, 224, 256, 512, 1024}
    assert all(n <= prompt_bucket(n, 64) for n in range(1, 1025))


def test_pieces_and_meshes_do_not_change_what_is_sampled():
    whole = sampler(sequences=64).sample(
        policy(), prompts(9), keys(9, 4), temperature=1.0, max_new_tokens=8
    )
    mesh = make_mesh(2, 2, 2)
    spread = Policy("team", CONFIG, TokenChat(), shard(mesh, params()))
    for who, using in ((policy(), sampler(8)), (spread, sampler(8, mesh))):
        got = using.sample(who, prompts(9), keys(9, 4), temperature=1.0, max_new_tokens=8)
        np.testing.assert_array_equal(got.token_ids_BxKxR, whole.token_ids_BxKxR)
        np.testing.assert_array_equal(got.mask_BxKxR, whole.mask_BxKxR)
        np.testing.assert_allclose(got.logprob_BxKxR, whole.logprob_BxKxR, atol=1e-4)


def test_padding_rows_stop_at_once():
    """Rows that only fill the bucket never keep the decoding loop going."""
    prompt = np.full((8, 32), 6, np.int32)
    *_, mask, _ = generate(
        CONFIG,
        params(),
        prompt,
        np.arange(32)[None] < np.ones((8, 1)) * 4,
        np.zeros(8, bool),
        keys(8, 2),
        np.float32(1),
        np.array([3, 5]),
        8,
    )
    assert not jax.device_get(mask).any()
