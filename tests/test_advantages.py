"""The advantage kernel against hand calculation and a numpy oracle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atgrpo_jax.advantages import group_advantages


def advantages(rewards, member=None, **options):
    rewards = np.asarray(rewards, np.float32)
    member = np.ones(rewards.shape, bool) if member is None else np.asarray(member)
    return np.asarray(group_advantages(rewards, member, **options))


def oracle(rewards, member, scale, leave_one_out):
    """One group at a time, in float64, straight from Eq. 1."""
    result = np.zeros(rewards.shape)
    for row, keep in enumerate(member):
        values = rewards[row, keep].astype(np.float64)
        if len(values) < 2 or values.max() - values.min() <= 1e-6:
            continue
        baseline = values.mean()
        if leave_one_out:
            baseline = (values.sum() - values) / (len(values) - 1)
        divisor = {"population": values.std(), "unbiased": values.std(ddof=1), "none": 1.0}[scale]
        result[row, keep] = (values - baseline) / divisor
    return result


@pytest.mark.parametrize("scale", ["population", "unbiased", "none"])
@pytest.mark.parametrize("leave_one_out", [False, True])
def test_equals_the_oracle_on_ragged_groups(scale, leave_one_out):
    random = np.random.default_rng(0)
    rewards = random.normal(size=(200, 6)).astype(np.float32)
    rewards[:60] = random.integers(0, 2, size=(60, 6))
    member = random.random((200, 6)) < 0.7
    got = advantages(rewards, member, scale=scale, leave_one_out=leave_one_out)
    np.testing.assert_allclose(got, oracle(rewards, member, scale, leave_one_out), atol=2e-5)


def test_hand_calculation():
    np.testing.assert_allclose(
        advantages([[1, 0, 0, 0]], scale="none"), [[0.75, -0.25, -0.25, -0.25]]
    )
    np.testing.assert_allclose(advantages([[1, 0]], scale="population"), [[1, -1]])
    np.testing.assert_allclose(
        advantages([[1, 0]], scale="unbiased"), [[0.5**0.5, -(0.5**0.5)]], rtol=1e-6
    )
    np.testing.assert_allclose(
        advantages([[1, 0, 0]], scale="none", leave_one_out=True), [[1, -0.5, -0.5]], rtol=1e-6
    )


@pytest.mark.parametrize("scale", ["population", "unbiased", "none"])
def test_group_without_contrast_is_exactly_zero(scale):
    got = advantages([[1, 1, 1, 1], [1, 1, 1, 1 + 1e-7], [0.1, 0.1, 0.1, 0.1]], scale=scale)
    assert (got == 0).all()


@pytest.mark.parametrize("reward", [1.0, -3.0])
def test_single_member_has_nothing_to_compare_with(reward):
    assert (advantages([[reward]]) == 0).all()
    got = advantages([[reward, 5, 5, 5]], [[True, False, False, False]], scale="unbiased")
    assert (got == 0).all()


def test_each_group_is_centred_on_its_own_mean():
    got = advantages([[1, 1, 1, 0], [0, 0, 0, 1]])
    np.testing.assert_allclose(got.sum(-1), 0, atol=1e-6)
    np.testing.assert_allclose(got[0, 3], -got[1, 3], rtol=1e-6)


def test_what_stands_under_a_dropped_member_is_not_read():
    member = [[True, True, False, False]]
    clean = advantages([[1, 0, 0, 0]], member)
    dirty = advantages([[1, 0, np.nan, np.inf]], member)
    np.testing.assert_array_equal(clean, dirty)


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(8)))
def test_regrouping_after_a_shuffle_is_bit_identical(order):
    rewards = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)
    np.testing.assert_array_equal(
        advantages(rewards)[list(order)], advantages(rewards[list(order)])
    )


def test_unknown_scale_is_one_line():
    with pytest.raises(ValueError, match="advantage.scale='std' is unknown"):
        advantages([[1, 0]], scale="std")


def test_group_with_a_single_loser_is_kept_whole():
    """Filtering decides on groups: [0] + 7 * [.95] keeps all eight members' signal."""
    got = advantages([[0.0] + [0.95] * 7], leave_one_out=True, scale="none")
    assert (got != 0).all()
