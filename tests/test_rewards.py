"""Eq. 3 by hand."""

import numpy as np
import pytest

from atgrpo_jax.rewards import check_weights, combine, local

PARTS = {
    "team": np.array([[1.0, 0.25]], np.float32),
    "format": np.array([[1.0, 0.0]], np.float32),
    "potential": np.array([[0.5, -1.0]], np.float32),
}


def test_combines_by_hand():
    weights = {"format": 0.1, "potential": 0.8}
    np.testing.assert_allclose(combine(PARTS, weights, 2.0), [[2.5, -0.3]], atol=1e-6)
    np.testing.assert_allclose(local(PARTS, weights), [[0.5, -0.8]], atol=1e-6)
    assert combine(PARTS, weights, 2.0).dtype == np.float32


def test_no_local_weights_leave_the_team_reward():
    np.testing.assert_array_equal(combine(PARTS, {}, 1.0), PARTS["team"])


@pytest.mark.parametrize("name", ["potentail", "team"])
def test_unknown_part_is_one_line(name):
    with pytest.raises(ValueError, match=rf"reward.weights.tool.{name} is no part of this task"):
        check_weights({name: 0.1}, PARTS, "tool")
