"""Group-relative advantages: one jitted kernel over a batch of groups."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

SCALES = ("population", "unbiased", "none")


@partial(jax.jit, static_argnames=("scale", "leave_one_out"))
def group_advantages(
    reward_BxK: Float[Array, "B K"],
    member_BxK: Bool[Array, "B K"],
    *,
    scale: str = "population",
    leave_one_out: bool = False,
    tolerance: Float[Array, ""] | float = 1e-6,
) -> Float[Array, "B K"]:
    """A_k = (r_k - baseline) / F_norm(r) within each group (Eq. 1); float32 in, float32 out.

    The baseline is the mean of the members, or of the other members (`leave_one_out`).
    F_norm is the members' standard deviation (`population` or `unbiased`) or 1 (`none`).
    Exactly 0 for non-members, for groups of fewer than two members, and for groups whose
    rewards differ by `tolerance` or less. What stands under member False is never read.
    """
    if scale not in SCALES:
        raise ValueError(f"advantage.scale={scale!r} is unknown; use one of {', '.join(SCALES)}")
    reward_BxK = jnp.where(member_BxK, reward_BxK.astype(jnp.float32), 0.0)
    count_B = member_BxK.sum(-1, keepdims=True).astype(jnp.float32)
    total_B = reward_BxK.sum(-1, keepdims=True)
    mean_B = total_B / jnp.maximum(count_B, 1.0)
    centred_BxK = jnp.where(member_BxK, reward_BxK - mean_B, 0.0)
    others_B = jnp.maximum(count_B - 1.0, 1.0)
    # Leaving one out, r - (total - r) / (n - 1) = (r - mean) * n / (n - 1).
    advantage_BxK = centred_BxK * count_B / others_B if leave_one_out else centred_BxK
    highest_B = jnp.where(member_BxK, reward_BxK, -jnp.inf).max(-1, keepdims=True)
    lowest_B = jnp.where(member_BxK, reward_BxK, jnp.inf).min(-1, keepdims=True)
    contrast_B = (count_B > 1) & (highest_B - lowest_B > tolerance)
    if scale != "none":
        divisor_B = others_B if scale == "unbiased" else jnp.maximum(count_B, 1.0)
        variance_B = jnp.square(centred_BxK).sum(-1, keepdims=True) / divisor_B
        advantage_BxK /= jnp.sqrt(jnp.where(contrast_B, variance_B, 1.0))
    return jnp.where(contrast_B & member_BxK, advantage_BxK, 0.0)
