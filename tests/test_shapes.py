"""The shape annotations of the public kernels are enforced in tests."""

import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

from atgrpo_jax.advantages import group_advantages
from atgrpo_jax.loss import token_logprobs


def test_groups_and_members_have_one_shape():
    with pytest.raises(TypeCheckError, match="member_BxK"):
        group_advantages(jnp.zeros((2, 3)), jnp.ones((2, 4), bool))


def test_dtypes_are_checked():
    with pytest.raises(TypeCheckError, match="member_BxK"):
        group_advantages(jnp.zeros((2, 3)), jnp.ones((2, 3)))


def test_targets_belong_to_tokens():
    with pytest.raises(TypeCheckError, match="target_T"):
        token_logprobs(jnp.zeros((5, 2)), jnp.zeros((2, 7)), jnp.zeros(4, jnp.int32), 1.0)
