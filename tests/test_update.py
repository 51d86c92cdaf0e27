"""The optimiser step: packing, accumulation, devices and donation change nothing."""

from dataclasses import replace
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from atgrpo_jax import update as update_module
from atgrpo_jax.loss import LossSettings
from atgrpo_jax.mesh import make_mesh, place_rows, shard, shardings
from atgrpo_jax.models import decoder
from atgrpo_jax.optimizer import state_shardings
from atgrpo_jax.update import (
    Batch,
    make_update,
    row_logprobs,
    score,
    split_micro,
    unshare,
)
from tests.tiny import CONFIG, groups, params


def pack(data, keep, share):
    return update_module.pack(data, keep, share, np.full(len(data), 0.5))


SETTINGS = LossSettings(0.2, 0.28, entropy=0.01, kl=0.0, aggregation="token", constant_length=6)


OPTIMIZER = optax.sgd(0.1)


@lru_cache
def plain_update(settings):
    """One jitted step for all tests of one device, so that equal shapes compile once."""
    return make_update(CONFIG, OPTIMIZER, settings, fresh=True)


def step(batch, micro, *, mesh=None, settings=SETTINGS):
    weights, update = params(scale=2.0), plain_update(settings)
    if mesh is not None:
        weights = shard(mesh, weights)
        placed = shardings(mesh, weights), state_shardings(mesh, OPTIMIZER, weights)
        update = make_update(CONFIG, OPTIMIZER, settings, fresh=True, placed=placed)
    split = split_micro(batch, micro, len(batch.prompt_BxS), 32)
    if mesh is not None:
        split = place_rows(mesh, split, axis=1)
    return update(weights, OPTIMIZER.init(weights), None, split, jnp.float32(1.0))


def assert_same(left, right, rtol=1e-5):
    for name, value in left.items():
        np.testing.assert_allclose(value, right[name], rtol=rtol, atol=1e-6, err_msg=name)


def test_micro_batches_do_not_change_the_step():
    batch = pack(groups(8), 0, True)
    whole, _, metrics = step(batch, 8)
    before = params(scale=2.0)
    assert max(float(np.abs(whole[n] - before[n]).max()) for n in whole) > 1e-3
    for micro in (1, 2, 4):
        got, _, other = step(batch, micro)
        assert_same(whole, got)
        assert_same(metrics, other)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_sharing_the_prompt_changes_nothing(aggregation):
    settings = LossSettings(0.2, 0.28, 0.01, 0.0, aggregation, 6)
    batch = pack(groups(8), 0, True)
    shared, _, _ = step(batch, 8, settings=settings)
    separate, _, _ = step(unshare(batch), 8, settings=settings)
    assert_same(shared, separate)


@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8, 1), (2, 2, 2)])
def test_meshes_do_not_change_the_step(shape):
    batch = pack(groups(8), 0, True)
    alone, _, _ = step(batch, 8)
    spread, _, _ = step(batch, 8, mesh=make_mesh(*shape))
    assert_same(alone, spread)


def test_packed_logprobs_equal_a_plain_forward_pass():
    data = groups(6)
    batch = pack(data, 0, True)
    packed, _ = row_logprobs(CONFIG, params(), batch, jnp.float32(1.3))
    for b, k in np.ndindex(6, 4):
        prompt = data.prompt_BxS[b, : data.prompt_length_B[b]]
        length = int(data.mask_BxKxR[b, k].sum())
        response = data.response_BxKxR[b, k, :length]
        ids = np.concatenate([prompt, response])[None]
        hidden = decoder.forward(CONFIG, params(), ids, np.ones(ids.shape, bool))
        logits = decoder.logits(CONFIG, params(), hidden)[0] / 1.3
        expected = jax.nn.log_softmax(logits)[np.arange(len(prompt) - 1, ids.size - 1), response]
        np.testing.assert_allclose(packed[b, k, :length], expected, atol=2e-4)


def test_fresh_ratio_is_exactly_one():
    _, _, metrics = step(pack(groups(8), 0, True), 4)
    assert metrics["clip_fraction"] == 0
    assert metrics["approximate_kl"] == 0


def test_second_step_on_the_same_batch_leaves_ratio_one():
    batch = split_micro(pack(groups(8), 0, True), 4, 8, 32)
    weights, optimizer = params(scale=2.0), optax.sgd(5.0)
    old = score(CONFIG, weights, batch, jnp.float32(1.0))
    batch = Batch(**{**vars(batch), "old_BxKxR": old})
    update = make_update(CONFIG, optimizer, SETTINGS, fresh=False)
    state = optimizer.init(weights)
    weights, state, first = update(weights, state, None, batch, jnp.float32(1.0))
    _, _, second = update(weights, state, None, batch, jnp.float32(1.0))
    assert first["clip_fraction"] == 0
    assert abs(float(first["approximate_kl"])) < 1e-6
    assert second["clip_fraction"] > 0


def test_permuting_groups_changes_nothing():
    data = groups(8)
    order = np.random.default_rng(1).permutation(8)
    one = pack(data, 0, True)
    other = Batch(**{name: value[order] for name, value in vars(one).items()})
    assert_same(step(one, 8)[0], step(other, 8)[0])


def test_everything_under_the_mask_is_unobservable():
    data = groups(8)
    clean = pack(data, 0, True)
    junk = np.random.default_rng(2).integers(6, 40, clean.response_BxKxR.shape)
    dirty = Batch(
        **{
            **vars(clean),
            "response_BxKxR": np.where(clean.mask_BxKxR, clean.response_BxKxR, junk).astype(
                np.int32
            ),
            "sampler_BxKxR": np.where(clean.mask_BxKxR, clean.sampler_BxKxR, np.nan),
            "prompt_BxS": np.where(clean.prompt_mask_BxS, clean.prompt_BxS, 7).astype(np.int32),
        }
    )
    left, right = step(clean, 4), step(dirty, 4)
    assert_same(left[0], right[0], rtol=0)
    assert_same(left[2], right[2], rtol=0)


def test_batch_without_signal_moves_nothing():
    batch = pack(groups(8), 0, True)
    flat = Batch(**{**vars(batch), "advantage_BxK": np.zeros((8, 4), np.float32)})
    settings = LossSettings(0.2, 0.28, 0.0, 0.0, "token", 6)
    got, _, metrics = step(flat, 4, settings=settings)
    assert_same(got, params(scale=2.0), rtol=0)
    assert metrics["gradient_norm"] == 0


def test_parameters_and_optimizer_state_are_donated():
    optimizer = optax.adam(1e-3)
    weights = params()
    state = optimizer.init(weights)
    update = make_update(CONFIG, optimizer, SETTINGS, fresh=True)
    update(weights, state, None, split_micro(pack(groups(8), 0, True), 8, 8, 32), jnp.float32(1.0))
    assert all(leaf.is_deleted() for leaf in weights.values())


def test_keep_drops_members_from_the_row():
    assert pack(groups(8), 2, True).response_BxKxR.shape == (8, 2, 6)
    assert pack(groups(8), 2, False).response_BxKxR.shape == (16, 1, 6)


def test_merging_repeats_changes_nothing():
    """Eight branches of which four repeat others, merged, against the eight of them."""
    data = groups(6, branches=8)
    twice = {
        name: np.concatenate([getattr(data, name)[:, :4]] * 2, axis=1)
        for name in ("response_BxKxR", "mask_BxKxR", "advantage_BxK", "logprob_BxKxR")
    }
    data = replace(data, **twice)
    whole = pack(data, 0, True)
    assert (whole.weight_BxK.sum(-1) == 8).all()
    assert ((whole.weight_BxK > 0).sum(-1) == 4).all()
    plain = Batch(
        **{
            **vars(whole),
            **{name: getattr(data, name) for name in twice if name != "logprob_BxKxR"},
            "sampler_BxKxR": data.logprob_BxKxR,
            "old_BxKxR": data.logprob_BxKxR,
            "weight_BxK": np.ones((6, 8), np.float32),
        }
    )
    left, right, merged = step(whole, 6), step(plain, 6), step(pack(data, 4, True), 6)
    for other in (right, merged):
        assert_same(left[0], other[0])
        assert_same(left[2], other[2])


def test_empty_room_changes_nothing():
    batch = pack(groups(8), 0, True)
    weights = params(scale=2.0)
    roomy = split_micro(batch, 4, 23, 64)
    assert roomy.prompt_BxS.shape == (6, 4, 64)
    got = plain_update(SETTINGS)(weights, OPTIMIZER.init(weights), None, roomy, jnp.float32(1.0))
    assert_same(step(batch, 8)[0], got[0])
