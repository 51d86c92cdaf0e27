"""The clipped surrogate (Eq. 2) and its side terms, as sums over sampled tokens."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

AGGREGATIONS = ("token", "sequence", "constant")
KL_LINEAR_FROM = 10.0  # nats; beyond it exp() would overflow, so k3 goes on along its tangent


@dataclass(frozen=True)
class LossSettings:
    """Fixed terms of the loss; see configs/common.py for each field."""

    clip_low: float
    clip_high: float
    entropy: float
    kl: float
    aggregation: str
    constant_length: int  # tokens; the divisor of aggregation "constant"


def token_logprobs(
    hidden_TxD: Float[Array, "T D"],
    head_DxV: Float[Array, "D V"],
    target_T: Int[Array, " T"],
    temperature: Float[Array, ""] | float,
    chunk: int = 1024,
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    """Log-probability of each target and entropy of its distribution, in float32 nats.

    Works through `chunk` tokens at a time and recomputes in the backward pass, so that no
    [tokens, vocabulary] array of the whole batch exists.
    """
    tokens, width = hidden_TxD.shape
    chunk = min(chunk, tokens)
    padding = -tokens % chunk
    hidden = jnp.pad(hidden_TxD, ((0, padding), (0, 0))).reshape(-1, chunk, width)
    target = jnp.pad(target_T, (0, padding)).reshape(-1, chunk)

    @jax.checkpoint
    def one_chunk(part: tuple[Array, Array]) -> tuple[Array, Array]:
        wide = jnp.matmul(part[0], head_DxV, preferred_element_type=jnp.float32)
        logits_CxV = wide / temperature
        logprob_CxV = jax.nn.log_softmax(logits_CxV, axis=-1)
        chosen_C = jnp.take_along_axis(logprob_CxV, part[1][:, None], axis=-1)[:, 0]
        entropy_C = -(jnp.exp(logprob_CxV) * logprob_CxV).sum(-1)
        return chosen_C, entropy_C

    logprob, entropy = jax.lax.map(one_chunk, (hidden, target))
    return logprob.reshape(-1)[:tokens], entropy.reshape(-1)[:tokens]


def k3(logprob: Float[Array, ...], reference: Float[Array, ...]) -> Float[Array, ...]:
    """Low-variance KL(policy || reference) estimate, >= 0; finite with finite gradient."""
    gap = reference - logprob
    near = jnp.minimum(gap, KL_LINEAR_FROM)
    slope = jnp.exp(KL_LINEAR_FROM) - 1.0
    return jnp.exp(near) - near - 1.0 + slope * jnp.maximum(gap - KL_LINEAR_FROM, 0.0)


def token_weights(
    mask_BxKxR: Bool[Array, "B K R"], weight_BxK: Float[Array, "B K"], settings: LossSettings
) -> tuple[Float[Array, "B K R"], Float[Array, ""]]:
    """Weight of every token and what these weights count up to, for one aggregation.

    Sums of both over micro-batches and devices give the same mean whatever the split. A member of
    weight w counts like w members.
    """
    length = mask_BxKxR.sum(-1, keepdims=True).astype(jnp.float32)
    weighted = mask_BxKxR * weight_BxK[..., None]
    sequences = jnp.where(length[..., 0] > 0, weight_BxK, 0.0).sum()
    if settings.aggregation == "token":
        return weighted, weighted.sum()
    if settings.aggregation == "sequence":
        return weighted / jnp.maximum(length, 1.0), sequences
    if settings.aggregation == "constant":
        return weighted / settings.constant_length, sequences
    raise ValueError(
        f"update.aggregation={settings.aggregation!r} is unknown; use one of "
        f"{', '.join(AGGREGATIONS)}"
    )


def policy_loss(
    logprob_BxKxR: Float[Array, "B K R"],
    old_BxKxR: Float[Array, "B K R"],
    advantage_BxK: Float[Array, "B K"],
    weight_BxK: Float[Array, "B K"],
    mask_BxKxR: Bool[Array, "B K R"],
    entropy_BxKxR: Float[Array, "B K R"],
    reference_BxKxR: Float[Array, "B K R"] | None,
    settings: LossSettings,
) -> tuple[Float[Array, ""], Float[Array, ""], dict[str, Array]]:
    """(sum, count, metric sums) of the clipped surrogate (Eq. 2) minus entropy plus KL terms.

    loss = sum / count; a member of weight w stands for w of them. Whatever stands under mask
    False changes nothing, NaN included.
    """
    mask = mask_BxKxR
    weight, count = token_weights(mask, weight_BxK, settings)
    each = mask * weight_BxK[..., None]  # of means over tokens
    logprob = jnp.where(mask, logprob_BxKxR, 0.0)
    old = jnp.where(mask, old_BxKxR, 0.0)
    advantage = jnp.where(mask, advantage_BxK[..., None], 0.0)
    entropy = jnp.where(mask, entropy_BxKxR, 0.0)
    ratio = jnp.exp(logprob - old)
    clipped = jnp.clip(ratio, 1.0 - settings.clip_low, 1.0 + settings.clip_high)
    surrogate = jnp.minimum(ratio * advantage, clipped * advantage)
    token_loss = -surrogate - settings.entropy * entropy
    sums = {
        "policy_loss": -(weight * surrogate).sum(),
        "entropy": (each * entropy).sum(),
        "tokens": each.sum(),
        "clipped": (each * (clipped * advantage < ratio * advantage)).sum(),
        "approximate_kl": (each * k3(logprob, old)).sum(),
    }
    if reference_BxKxR is not None:
        divergence = k3(logprob, jnp.where(mask, reference_BxKxR, 0.0))
        token_loss += settings.kl * divergence
        sums["reference_kl"] = (each * divergence).sum()
    return (weight * token_loss).sum(), count, sums
