"""One optimiser step: packed groups, accumulation by scan, donated buffers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.sharding import NamedSharding

from atgrpo_jax.loss import LossSettings, policy_loss, token_logprobs
from atgrpo_jax.models import decoder
from atgrpo_jax.models.decoder import ModelConfig, Params
from atgrpo_jax.rollout.record import Groups
from atgrpo_jax.samplers.jax_sampler import prompt_bucket
from atgrpo_jax.thinning import merge_repeats, thin


@struct.dataclass
class Batch:
    """Rows of one prompt and K responses each; leading axes [micro-batch, row] once split."""

    prompt_BxS: Any  # int32
    prompt_mask_BxS: Any  # bool
    response_BxKxR: Any  # int32
    mask_BxKxR: Any  # bool: sampled tokens, the stop token included
    advantage_BxK: Any  # float32
    weight_BxK: Any  # float32: how often a member counts; 0 for none
    sampler_BxKxR: Any  # float32: the sampler's log-probabilities
    old_BxKxR: Any  # float32: the learner's before the first optimiser step of this batch


def pack(groups: Groups, keep: int, share_prompt: bool, uniform_B: np.ndarray) -> Batch:
    """Groups -> rows of at most `keep` members (0: all), repeats merged; see thinning.thin.

    Without sharing each member gets a row of its own.
    """
    count_BxK = merge_repeats(
        groups.response_BxKxR, groups.mask_BxKxR, groups.advantage_BxK, groups.member_BxK
    )
    index, weight_BxK = thin(groups.advantage_BxK, count_BxK, keep, uniform_B)
    take = lambda array: np.take_along_axis(  # noqa: E731
        array, index if array.ndim == 2 else index[..., None], axis=1
    )
    length = groups.prompt_BxS.shape[1]
    batch = Batch(
        prompt_BxS=groups.prompt_BxS,
        prompt_mask_BxS=np.arange(length)[None] < groups.prompt_length_B[:, None],
        response_BxKxR=take(groups.response_BxKxR),
        mask_BxKxR=take(groups.mask_BxKxR) & (weight_BxK > 0)[..., None],
        advantage_BxK=take(groups.advantage_BxK),
        weight_BxK=weight_BxK,
        sampler_BxKxR=take(groups.logprob_BxKxR),
        old_BxKxR=take(groups.logprob_BxKxR),
    )
    return batch if share_prompt else unshare(batch)


def unshare(batch: Batch) -> Batch:
    """The same samples with one row, and one copy of the prompt, for each response."""
    branches = batch.response_BxKxR.shape[1]

    def split(name: str, array: np.ndarray) -> np.ndarray:
        if name.startswith("prompt"):
            return np.repeat(array, branches, axis=0)
        return array.reshape(-1, 1, *array.shape[2:])

    return Batch(**{name: split(name, value) for name, value in vars(batch).items()})


def split_micro(batch: Batch, micro_batch: int, most: int, prompt_tokens: int) -> Batch:
    """[B, ...] -> [n, micro_batch, ...] with room for `most` rows, the rest filled up with empty
    ones, so that every step of a run has one shape; prompts of `prompt_tokens` or the next bucket.
    """
    rows, length = batch.prompt_BxS.shape
    target = prompt_bucket(length, prompt_tokens)
    micro = -(-max(most, rows) // micro_batch)

    def pad(name: str, array: np.ndarray) -> np.ndarray:
        widths = [(0, micro * micro_batch - rows)] + [(0, 0)] * (array.ndim - 1)
        if name.startswith("prompt"):
            widths[1] = (0, target - length)
        padded = np.pad(array, widths)
        if name == "prompt_mask_BxS":
            padded[rows:, 0] = True  # an empty row attends one token, so nothing turns NaN
        return padded.reshape(micro, micro_batch, *padded.shape[1:])

    return Batch(**{name: pad(name, value) for name, value in vars(batch).items()})


def row_logprobs(
    config: ModelConfig, params: Params, batch: Batch, temperature: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Log-probability and entropy [B, K, R] of every response token; each prompt computed once."""
    last_BxD, prefix = decoder.prefill(config, params, batch.prompt_BxS, batch.prompt_mask_BxS)
    groups, branches, length = batch.response_BxKxR.shape
    first = jnp.broadcast_to(last_BxD[:, None, None], (groups, branches, 1, last_BxD.shape[-1]))
    hidden = decoder.extend(config, params, prefix, batch.response_BxKxR[..., :-1])
    hidden_TxD = jnp.concatenate([first, hidden], axis=2).reshape(-1, last_BxD.shape[-1])
    target_T = jnp.asarray(batch.response_BxKxR).reshape(-1)
    logprob, entropy = token_logprobs(
        hidden_TxD, decoder.head(config, params), target_T, temperature
    )
    shape = batch.response_BxKxR.shape
    return logprob.reshape(shape), entropy.reshape(shape)


def gap_sums(logprob: jax.Array, batch: Batch) -> dict[str, jax.Array]:
    """How far learner and sampler disagree on the sampled tokens: sum and maximum, in nats."""
    gap = jnp.abs(jnp.where(batch.mask_BxKxR, logprob - batch.sampler_BxKxR, 0.0))
    return {
        "sampler_gap": (gap * batch.weight_BxK[..., None]).sum(),
        "sampler_gap_max": gap.max(),
    }


def merge_sums(left: dict[str, jax.Array], right: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Adds metric sums; names that end in _max take the larger."""
    return {
        name: jnp.maximum(left[name], right[name])
        if name.endswith("_max")
        else left[name] + right[name]
        for name in left
    }


def make_update(
    config: ModelConfig,
    optimizer: optax.GradientTransformation,
    settings: LossSettings,
    *,
    fresh: bool,
    placed: tuple[dict[str, NamedSharding], Any] | None = None,
) -> Callable[..., tuple[Params, Any, dict[str, jax.Array]]]:
    """The jitted step (params, opt_state, reference, batch, temperature) -> the same, updated.

    `fresh`: the batch was sampled from these very weights and sees one optimiser step, so the
    old log-probabilities are the new ones with their gradient stopped (ratio exactly 1).
    params and opt_state are donated and stay where `placed` says. batch has axes
    [micro-batch, row, ...].
    """

    def micro_loss(
        params: Params, reference: Params | None, batch: Batch, temperature: jax.Array
    ) -> tuple[jax.Array, tuple[jax.Array, dict[str, jax.Array]]]:
        logprob, entropy = row_logprobs(config, params, batch, temperature)
        old = jax.lax.stop_gradient(logprob) if fresh else batch.old_BxKxR
        frozen = None
        if reference is not None:
            frozen = jax.lax.stop_gradient(row_logprobs(config, reference, batch, temperature)[0])
        total, count, sums = policy_loss(
            logprob,
            old,
            batch.advantage_BxK,
            batch.weight_BxK,
            batch.mask_BxKxR,
            entropy,
            frozen,
            settings,
        )
        return total, (count, sums | {"loss": total} | gap_sums(logprob, batch))

    def accumulate(
        params: Params, reference: Params | None, batch: Batch, temperature: jax.Array
    ) -> tuple[Params, jax.Array, dict[str, jax.Array]]:
        gradient_of = jax.value_and_grad(micro_loss, has_aux=True)

        def compute(micro: Batch) -> tuple:
            (_, (count, sums)), gradient = gradient_of(params, reference, micro, temperature)
            return gradient, count, sums

        first = jax.tree.map(lambda array: array[0], batch)
        zeros = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(compute, first)
        )

        def body(carry: tuple, micro: Batch) -> tuple[tuple, None]:
            # Micro-batches of padding alone cost nothing.
            gradient, count, sums = jax.lax.cond(
                micro.mask_BxKxR.any(), compute, lambda _: zeros, micro
            )
            total = jax.tree.map(jnp.add, carry[0], gradient)
            return (total, carry[1] + count, merge_sums(carry[2], sums)), None

        return jax.lax.scan(body, zeros, batch)[0]

    shardings = None if placed is None else (*placed, None)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=shardings)
    def update(
        params: Params,
        opt_state: Any,
        reference: Params | None,
        batch: Batch,
        temperature: jax.Array,
    ) -> tuple[Params, Any, dict[str, jax.Array]]:
        gradient, count, sums = accumulate(params, reference, batch, temperature)
        gradient = jax.tree.map(lambda leaf: leaf / jnp.maximum(count, 1.0), gradient)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        params = optax.apply_updates(params, updates)
        metrics = summarise(sums, count) | {"gradient_norm": optax.global_norm(gradient)}
        return params, opt_state, metrics

    return update


def summarise(sums: dict[str, jax.Array], count: jax.Array) -> dict[str, jax.Array]:
    """Metric sums -> means: losses over `count`, token statistics over the sampled tokens."""
    tokens = jnp.maximum(sums["tokens"], 1.0)
    means = {
        name: value / (jnp.maximum(count, 1.0) if name in ("loss", "policy_loss") else tokens)
        for name, value in sums.items()
        if name != "tokens" and not name.endswith("_max")
    }
    means["clip_fraction"] = means.pop("clipped")
    return means | {"tokens": sums["tokens"], "sampler_gap_max": sums["sampler_gap_max"]}


@partial(jax.jit, static_argnames=("config",))
def score(config: ModelConfig, params: Params, batch: Batch, temperature: jax.Array) -> jax.Array:
    """The learner's log-probabilities [n, B, K, R] of a split batch; no gradient.

    Zero in micro-batches of padding alone, which cost nothing.
    """

    def compute(micro: Batch) -> jax.Array:
        return row_logprobs(config, params, micro, temperature)[0]

    def nothing(micro: Batch) -> jax.Array:
        return jnp.zeros(micro.mask_BxKxR.shape, jnp.float32)

    return jax.lax.map(
        lambda micro: jax.lax.cond(micro.mask_BxKxR.any(), compute, nothing, micro), batch
    )
