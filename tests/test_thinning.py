"""Thinning a group: exact where it merges, right on average where it samples."""

import numpy as np
import pytest

from atgrpo_jax.thinning import inclusion, merge_repeats, thin


def uniforms(count):
    return (np.arange(count) + 0.5) / count


def test_repeats_count_at_their_first_branch():
    response = np.array([[[5, 3], [5, 9], [5, 3], [7, 3]]])
    mask = np.array([[[1, 1], [1, 0], [1, 1], [1, 1]]], bool)
    advantage = np.zeros((1, 4), np.float32)
    count = merge_repeats(response, mask, advantage, np.ones((1, 4), bool))
    np.testing.assert_array_equal(count, [[2, 1, 0, 1]])


def test_what_stands_under_the_mask_makes_no_difference():
    response = np.array([[[5, 1], [5, 2]]])
    mask = np.array([[[1, 0], [1, 0]]], bool)
    count = merge_repeats(response, mask, np.zeros((1, 2), np.float32), np.ones((1, 2), bool))
    np.testing.assert_array_equal(count, [[2, 0]])


def test_equal_responses_of_other_advantage_or_group_stay_apart():
    response = np.full((2, 3, 1), 4)
    advantage = np.array([[1.0, -1.0, 1.0], [1.0, 1.0, 1.0]], np.float32)
    member = np.array([[True, True, True], [False, True, True]])
    count = merge_repeats(response, np.ones((2, 3, 1), bool), advantage, member)
    np.testing.assert_array_equal(count, [[2, 1, 0], [0, 2, 0]])


def test_inclusion_sums_to_keep_and_never_exceeds_one():
    share = np.abs(np.random.default_rng(0).normal(size=(200, 9))) ** 3
    share[:, 0] *= 50
    chance = inclusion(share, 4)
    np.testing.assert_allclose(chance.sum(-1), 4, rtol=1e-6)
    assert chance.max() <= 1 + 1e-9
    np.testing.assert_array_equal(inclusion(np.array([[1.0, 0.0, 2.0]]), 2), [[1, 0, 1]])


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_weighted_sums_have_the_expectation_of_the_whole(keep):
    random = np.random.default_rng(keep)
    advantage = np.tile(random.normal(size=(1, 8)).astype(np.float32), (20000, 1))
    count = np.tile(np.array([[3, 1, 0, 1, 2, 1, 1, 1]], np.int32), (20000, 1))
    value = random.normal(size=8)
    index, weight = thin(advantage, count, keep, uniforms(20000))
    estimate = (weight * value[index]).sum(-1).mean()
    assert estimate == pytest.approx((count[0] * value).sum(), abs=2e-3)
    assert index.shape == (20000, keep)
    assert ((weight > 0).sum(-1) == keep).all()
    assert all(len(set(row)) == keep for row in index[:50].tolist())


def test_keeping_all_keeps_every_count():
    count = np.array([[2, 0, 1, 1]], np.int32)
    index, weight = thin(np.ones((1, 4), np.float32), count, 0, np.array([0.3]))
    assert {int(i): float(w) for i, w in zip(index[0], weight[0], strict=True) if w} == {
        0: 2.0, 2: 1.0, 3: 1.0,
    }  # fmt: skip


def test_few_different_members_are_all_kept_exactly():
    count = np.array([[9, 0, 0, 7, 0, 0]], np.int32)
    index, weight = thin(np.ones((1, 6), np.float32), count, 3, np.array([0.99]))
    assert sorted(weight[0].tolist()) == [0.0, 7.0, 9.0]
    assert {0, 3} <= set(index[0].tolist())
