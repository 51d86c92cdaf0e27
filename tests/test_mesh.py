"""The mesh and its rules: sizes, unmatched names, indivisible dimensions."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from atgrpo_jax.mesh import make_mesh, shard, shardings, spec
from tests.tiny import CONFIG, params


def test_sizes_and_the_rest():
    assert dict(make_mesh(-1, 2, 2).shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert dict(make_mesh(8, 1, 1).shape) == {"data": 8, "fsdp": 1, "tensor": 1}


@pytest.mark.parametrize("sizes", [(3, 1, 1), (16, 1, 1), (0, 1, 1), (-1, 3, 1), (-1, -1, 2)])
def test_sizes_that_do_not_cover_the_devices(sizes):
    with pytest.raises(ValueError, match="does not cover 8 devices"):
        make_mesh(*sizes)


def test_every_parameter_has_a_rule_and_values_survive():
    weights = params()
    placed = shard(make_mesh(2, 2, 2), weights)
    for name, value in weights.items():
        np.testing.assert_array_equal(placed[name], value)
    assert not placed["layers.0.attention.q.kernel"].is_fully_replicated
    assert placed["norm.scale"].is_fully_replicated


def test_kernels_are_split_over_fsdp_and_tensor():
    assert spec("layers.11.ffn.down.kernel") == PartitionSpec("tensor", "fsdp")
    assert spec("layers.0.attention.k_norm.scale") == PartitionSpec()


def test_unmatched_parameter_is_an_error():
    with pytest.raises(ValueError, match="'layers.0.router.kernel' matches no sharding rule"):
        spec("layers.0.router.kernel")


def test_indivisible_dimension_names_the_parameter():
    weights = {"layers.0.ffn.up.kernel": np.zeros((CONFIG.width, 6))}
    with pytest.raises(ValueError, match=r"tensor=8 does not divide .* 'layers.0.ffn.up.kernel'"):
        shardings(make_mesh(1, 1, jax.device_count()), weights)
