"""The in-process sampler: one shared prefill a group, K branches decoded against it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from atgrpo_jax.mesh import place_rows, row_shards
from atgrpo_jax.models import decoder
from atgrpo_jax.models.decoder import ModelConfig, Params
from atgrpo_jax.policy import Policy
from atgrpo_jax.samplers.base import LENGTH, STOP, Samples


def prompt_bucket(size: int, least: int) -> int:
    """`least` holds most prompts; longer ones go up to a multiple of 32, above 256 to a power of
    two: few shapes, few compilations."""
    if size <= least:
        return least
    return -(-size // 32) * 32 if size <= 256 else 1 << (size - 1).bit_length()


def sample_token(
    logits_NxV: jax.Array, uniform_N: jax.Array, temperature: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Token by inversion of the distribution at u in [0, 1), and its log-probability.

    Temperature 0 takes the largest logit; its log-probability is then the one at temperature 1.
    The cumulative sum goes over blocks first and then inside one block: two short scans.
    """
    scale = jnp.where(temperature > 0, temperature, 1.0)
    logits_NxV = logits_NxV.astype(jnp.float32) / scale
    rows, vocabulary = logits_NxV.shape
    block = 1 << (math.isqrt(vocabulary).bit_length())
    largest_N = logits_NxV.max(-1, keepdims=True)
    weight_NxV = jnp.exp(logits_NxV - largest_N)
    weight = jnp.pad(weight_NxV, ((0, 0), (0, -vocabulary % block))).reshape(rows, -1, block)
    blocks_NxC = jnp.cumsum(weight.sum(-1), axis=-1)
    total_N = blocks_NxC[:, -1]
    at_N, left_N = _invert(blocks_NxC, uniform_N * total_N)
    inside_NxW = jnp.take_along_axis(weight, at_N[:, None, None], axis=1)[:, 0]
    inside_N, _ = _invert(jnp.cumsum(inside_NxW, axis=-1), left_N)
    drawn_N = at_N * block + inside_N
    token_N = jnp.where(temperature > 0, drawn_N, jnp.argmax(logits_NxV, axis=-1))
    token_N = token_N.astype(jnp.int32)
    chosen_N = jnp.take_along_axis(logits_NxV, token_N[:, None], axis=-1)[:, 0]
    return token_N, chosen_N - largest_N[:, 0] - jnp.log(total_N)


def _invert(cumulative_NxC: jax.Array, threshold_N: jax.Array) -> tuple[jax.Array, jax.Array]:
    """First index whose cumulative weight exceeds the threshold, and what is left of it there.

    Rounding may not lift the threshold onto the total, or an index of weight 0 could be drawn.
    """
    total_N = cumulative_NxC[:, -1]
    threshold_N = jnp.minimum(threshold_N, jnp.nextafter(total_N, 0.0))
    index_N = (cumulative_NxC <= threshold_N[:, None]).sum(-1)
    below = jnp.take_along_axis(cumulative_NxC, jnp.maximum(index_N - 1, 0)[:, None], axis=-1)[:, 0]
    return index_N, threshold_N - jnp.where(index_N > 0, below, 0.0)


@partial(jax.jit, static_argnames=("config", "length"))
def generate(
    config: ModelConfig,
    params: Params,
    prompt_BxS: jax.Array,
    prompt_mask_BxS: jax.Array,
    live_B: jax.Array,
    keys_BxKx2: jax.Array,
    temperature: jax.Array,
    stop_ids: jax.Array,
    length: int,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Up to `length` tokens for K branches a prompt: ids, log-probabilities, mask, stopped.

    Position r of branch k draws with fold_in(key_k, r), so a branch does not depend on what
    else is in the batch. Stops when every row has stopped.
    """
    groups, branches = keys_BxKx2.shape[:2]
    rows = groups * branches
    keys_N = jax.random.wrap_key_data(keys_BxKx2.reshape(rows, 2))

    def draw(hidden_NxD: jax.Array, step: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        uniform_N = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, step)))(keys_N)
        return sample_token(decoder.logits(config, params, hidden_NxD), uniform_N, temperature)

    last_BxD, prefix = decoder.prefill(config, params, prompt_BxS, prompt_mask_BxS)
    first_N, first_logprob_N = draw(jnp.repeat(last_BxD, branches, axis=0), 0)
    is_stop = lambda token: (token[:, None] == stop_ids).any(-1)  # noqa: E731
    tokens = jnp.zeros((rows, length), jnp.int32).at[:, 0].set(first_N)
    logprobs = jnp.zeros((rows, length), jnp.float32).at[:, 0].set(first_logprob_N)
    live_N = jnp.repeat(live_B, branches)
    mask = jnp.zeros((rows, length), bool).at[:, 0].set(live_N)
    stopped = is_stop(first_N) | ~live_N
    cache = decoder.empty_cache(config, groups, branches, length)

    def going(carry: tuple) -> jax.Array:
        return (carry[0] < length) & ~carry[4].all()

    def body(carry: tuple) -> tuple:
        step, tokens, logprobs, mask, stopped, cache = carry
        previous_BxK = tokens[:, step - 1].reshape(groups, branches)
        hidden_BxKxD, cache = decoder.decode(config, params, prefix, cache, previous_BxK, step - 1)
        token_N, logprob_N = draw(hidden_BxKxD.reshape(rows, -1), step)
        tokens = tokens.at[:, step].set(jnp.where(stopped, 0, token_N))
        logprobs = logprobs.at[:, step].set(jnp.where(stopped, 0.0, logprob_N))
        mask = mask.at[:, step].set(~stopped)
        return step + 1, tokens, logprobs, mask, stopped | is_stop(token_N), cache

    start = (jnp.int32(1), tokens, logprobs, mask, stopped, cache)
    _, tokens, logprobs, mask, stopped, _ = jax.lax.while_loop(going, body, start)
    shape = (groups, branches, length)
    return (
        tokens.reshape(shape),
        logprobs.reshape(shape),
        mask.reshape(shape),
        stopped.reshape(groups, branches),
    )


class JaxSampler:
    """Samples from the policy's own parameters on the trainer's devices.

    Works through `sequences` responses at a time, always as many, and pads prompts to
    `prompt_tokens` (longer ones to the next bucket): one shape, so one compilation.
    """

    def __init__(self, mesh: Mesh, sequences: int = 256, prompt_tokens: int = 32) -> None:
        self.mesh, self.sequences, self.prompt_tokens = mesh, sequences, prompt_tokens

    def sample(
        self,
        policy: Policy,
        prompts: Sequence[np.ndarray],
        keys_BxKx2: np.ndarray,
        *,
        temperature: float,
        max_new_tokens: int,
    ) -> Samples:
        """See samplers.base.Sampler. Raises ValueError when prompt and response do not fit the
        model's context."""
        longest = max(len(prompt) for prompt in prompts)
        if longest + max_new_tokens > policy.chat.max_positions:
            raise ValueError(
                f"a prompt of {longest} tokens plus rollout.max_new_tokens={max_new_tokens} "
                f"exceeds the context of {policy.chat.max_positions} tokens of policy "
                f"{policy.name!r}; "
                "use a more compact rendering, fewer new tokens or a model of longer context"
            )
        count, branches = keys_BxKx2.shape[:2]
        shards = row_shards(self.mesh)
        size = -(-max(self.sequences // branches, 1) // shards) * shards
        length = prompt_bucket(longest, self.prompt_tokens)
        calls = [
            self._call(
                policy,
                prompts[first : first + size],
                keys_BxKx2[first : first + size],
                (size, length, max_new_tokens),
                temperature,
            )
            for first in range(0, count, size)
        ]
        tokens, logprobs, mask, stopped = (
            np.concatenate(parts)[:count] for parts in zip(*jax.device_get(calls), strict=True)
        )
        return Samples(
            token_ids_BxKxR=tokens,
            logprob_BxKxR=logprobs,
            mask_BxKxR=mask,
            finish_BxK=np.where(stopped, STOP, LENGTH).astype(np.int8),
            weight_version_B=np.full(count, policy.version, np.int32),
        )

    def _call(
        self,
        policy: Policy,
        prompts: Sequence[np.ndarray],
        keys_BxKx2: np.ndarray,
        shape: tuple[int, int, int],
        temperature: float,
    ) -> tuple[jax.Array, ...]:
        """One batch of `shape` (groups, prompt length, response length), filled up with nothing."""
        groups, length, response = shape
        prompt_BxS = np.full((groups, length), policy.chat.pad_id, np.int32)
        mask_BxS = np.zeros((groups, length), bool)
        mask_BxS[:, 0] = True  # padding rows attend one token, so that nothing turns NaN
        for row, prompt in enumerate(prompts):
            prompt_BxS[row, : len(prompt)] = prompt
            mask_BxS[row, : len(prompt)] = True
        keys = np.zeros((groups, *keys_BxKx2.shape[1:]), np.uint32)
        keys[: len(prompts)] = keys_BxKx2
        live_B = np.arange(groups) < len(prompts)
        return generate(
            policy.config,
            policy.params,
            *place_rows(self.mesh, (prompt_BxS, mask_BxS, live_B, keys)),
            np.float32(temperature),
            np.asarray(policy.chat.stop_ids, np.int32),
            response,
        )
