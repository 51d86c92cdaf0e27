"""One decoder for prefill, packed training rows and decoding.

A row is one prompt (the prefix) and K members that share it. NNX declares the layers (layers.py);
outside this folder a model is `Params`, a flat plain dict of arrays. With config.scan layers are
stacked, "layers.attention.q.kernel" [layers, in, out]; else each layer has its own arrays,
"layers.0.attention.q.kernel". Keys and values of all layers are one array or a tuple, likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, struct

from atgrpo_jax.models.attention import attention
from atgrpo_jax.models.layers import Layer, ModelConfig, Outer

__all__ = ["Cache", "ModelConfig", "Params", "Prefix", "decode", "extend", "forward", "prefill"]

Params = dict[str, jax.Array]
PerLayer = tuple[jax.Array, ...] | jax.Array  # a tuple over layers, or stacked
REMAT_POLICIES: dict[str, Any] = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


@struct.dataclass
class Prefix:
    """Keys and values of right-padded prompts, [B, S, G, H] for each layer."""

    k: PerLayer
    v: PerLayer
    mask_BxS: jax.Array
    length_B: jax.Array


@struct.dataclass
class Cache:
    """Keys and values of the members' own tokens, [B, K, R, G, H] for each layer."""

    k: PerLayer
    v: PerLayer


@dataclass(frozen=True)
class _Part:
    """An NNX module without its arrays: its graph and, by name, each parameter's place and kind."""

    graph: Any
    paths: dict[str, tuple[Any, ...]]
    leaves: dict[str, Any]

    def module(self, params: Params) -> Any:
        """The module with `params` in it."""
        flat = {self.paths[name]: self.leaves[name].replace(params[name]) for name in self.paths}
        return nnx.merge(self.graph, nnx.from_flat_state(flat))


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in path)


@lru_cache(maxsize=32)
def _part(kind: Callable[..., Any], config: ModelConfig) -> _Part:
    graph, state = nnx.split(nnx.eval_shape(lambda: kind(config, nnx.Rngs(0))))
    flat = nnx.to_flat_state(state)
    return _Part(graph, {_name(p): p for p, _ in flat}, {_name(p): leaf for p, leaf in flat})


@lru_cache(maxsize=32)
def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    found = {name: tuple(leaf.shape) for name, leaf in _part(Outer, config).leaves.items()}
    for name, leaf in _part(Layer, config).leaves.items():
        if config.scan:
            found[f"layers.{name}"] = (config.layers, *leaf.shape)
        else:
            found |= {f"layers.{i}.{name}": tuple(leaf.shape) for i in range(config.layers)}
    return found


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter by name; kernels are [in, out]."""
    return dict(_shapes(config))


def init_params(config: ModelConfig, key: jax.Array) -> Params:
    """Fresh float32 parameters; the key is consumed."""

    def fresh(kind: Callable[..., Any], key: jax.Array) -> Params:
        state = nnx.state(kind(config, nnx.Rngs(key)))
        return {_name(path): leaf[...] for path, leaf in nnx.to_flat_state(state)}

    first, *others = jax.random.split(key, config.layers + 1)
    layers = [fresh(Layer, other) for other in others]
    params = fresh(Outer, first)
    for i, layer in enumerate(layers):
        params |= {f"layers.{i}.{name}": value for name, value in layer.items()}
    return stack_layers(config, params) if config.scan else params


def stack_layers(config: ModelConfig, params: Params) -> Params:
    """Parameters of single layers -> the stacked ones that config.scan wants."""
    stacked = {name: params[name] for name in _part(Outer, config).paths}
    for name in _part(Layer, config).paths:
        each = [params[f"layers.{i}.{name}"] for i in range(config.layers)]
        stacked[f"layers.{name}"] = jnp.stack(each)
    return stacked


def _check(config: ModelConfig, params: Params) -> None:
    wanted = _shapes(config)
    if params.keys() != wanted.keys():
        odd = sorted(params.keys() ^ wanted.keys())[0]
        fault = "is missing" if odd in wanted else "is not part of it"
        raise ValueError(f"parameters do not fit the model: {odd!r} {fault}")


def _layer_params(config: ModelConfig, params: Params) -> Any:
    """Layer's own names -> arrays: one stacked dict with scan, else a dict a layer."""
    names = _part(Layer, config).paths
    if config.scan:
        return {name: params[f"layers.{name}"] for name in names}
    return [{name: params[f"layers.{i}.{name}"] for name in names} for i in range(config.layers)]


def _write(kept: PerLayer, i: Any, new: jax.Array, step: jax.Array) -> PerLayer:
    """`new` [B,K,1,G,H] at own position `step` of layer `i`."""
    if isinstance(kept, tuple):
        changed = jax.lax.dynamic_update_slice_in_dim(kept[i], new, step, axis=2)
        return (*kept[:i], changed, *kept[i + 1 :])
    return jax.lax.dynamic_update_slice(kept, new[None], (i, 0, 0, step, 0, 0))


def _run(
    config: ModelConfig,
    params: Params,
    tokens_BxKxL: jax.Array,
    positions_BxKxL: jax.Array,
    own_mask: jax.Array,
    prefix: Prefix | None = None,
    cache: Cache | None = None,
    step: jax.Array | None = None,
    keep: bool = False,
) -> tuple[jax.Array, Any, Cache | None]:
    """Hidden states [B,K,L,D] after the final norm; every layer's own keys and values if `keep`;
    the cache with this step in it."""
    _check(config, params)
    part = _part(Layer, config)
    prefix_mask = None if prefix is None else prefix.mask_BxS

    def one(x: jax.Array, cache: Cache | None, per_layer: Any, i: Any) -> tuple[Any, Any, Any]:
        weights, before = per_layer
        layer = part.module(weights)
        q, k, v = layer.attention.project(layer.attention_norm(x), positions_BxKxL)
        if cache is not None:
            assert step is not None
            cache = Cache(k=_write(cache.k, i, k, step), v=_write(cache.v, i, v, step))
            k, v = cache.k[i], cache.v[i]
        out = attention(q, k, v, own_mask, before[0], before[1], prefix_mask)
        x = x + layer.attention.o(out.reshape(*x.shape[:-1], -1))
        x = x + layer.ffn(layer.ffn_norm(x))
        return x, cache, (k, v) if keep else None

    if config.remat != "none" and cache is None:
        one = jax.checkpoint(one, policy=REMAT_POLICIES[config.remat])
    outer = _part(Outer, config).module({n: params[n] for n in _part(Outer, config).paths})
    x = outer.embed[...][tokens_BxKxL].astype(config.compute_dtype)
    weights = _layer_params(config, params)
    if config.scan:
        before = (None, None) if prefix is None else (prefix.k, prefix.v)

        def body(carry: tuple, each: tuple) -> tuple[tuple, Any]:
            x, cache, kept = one(*carry, *each)
            return (x, cache), kept

        each = ((weights, before), jnp.arange(config.layers))
        (x, cache), kept = jax.lax.scan(body, (x, cache), each)
        return outer.norm(x), kept, cache
    all_kept = []
    for i in range(config.layers):
        before = (None, None) if prefix is None else (prefix.k[i], prefix.v[i])
        x, cache, kept = one(x, cache, (weights[i], before), i)
        all_kept.append(kept)
    return outer.norm(x), tuple(zip(*all_kept, strict=True)) if keep else None, cache


def _causal(length: int) -> jax.Array:
    return jnp.tril(jnp.ones((length, length), bool))


def forward(
    config: ModelConfig, params: Params, tokens_BxL: jax.Array, mask_BxL: jax.Array
) -> jax.Array:
    """Plain causal pass over padded sequences: hidden [B,L,D]. Positions count masked-in tokens,
    so padding may stand on either side."""
    length = tokens_BxL.shape[1]
    mask_BxL = jnp.asarray(mask_BxL)
    positions = jnp.maximum(jnp.cumsum(mask_BxL, axis=1) - 1, 0)[:, None]
    mask = _causal(length) & mask_BxL[:, None, None]
    return _run(config, params, jnp.asarray(tokens_BxL)[:, None], positions, mask)[0][:, 0]


def prefill(
    config: ModelConfig, params: Params, tokens_BxS: jax.Array, mask_BxS: jax.Array
) -> tuple[jax.Array, Prefix]:
    """Computes right-padded prompts once: hidden [B,D] at each last token, and the prefix."""
    length = tokens_BxS.shape[1]
    positions = jnp.broadcast_to(jnp.arange(length), tokens_BxS.shape)[:, None]
    mask_BxS = jnp.asarray(mask_BxS)
    mask = _causal(length) & mask_BxS[:, None, None, :]
    tokens = jnp.asarray(tokens_BxS)[:, None]
    hidden, (k, v), _ = _run(config, params, tokens, positions, mask, keep=True)
    length_B = mask_BxS.sum(-1).astype(jnp.int32)
    last_BxD = jnp.take_along_axis(hidden[:, 0], (length_B - 1)[:, None, None], axis=1)[:, 0]
    # [.., B, 1, S, G, H]: the one member goes.
    k, v = jax.tree.map(lambda array: jnp.squeeze(array, -4), (k, v))
    return last_BxD, Prefix(k, v, mask_BxS, length_B)


def extend(
    config: ModelConfig, params: Params, prefix: Prefix, tokens_BxKxL: jax.Array
) -> jax.Array:
    """Hidden [B,K,L,D] of members that share a prefix and do not see one another."""
    length = tokens_BxKxL.shape[2]
    positions = prefix.length_B[:, None, None] + jnp.arange(length)
    positions = jnp.broadcast_to(positions, tokens_BxKxL.shape)
    return _run(config, params, tokens_BxKxL, positions, _causal(length), prefix)[0]


def empty_cache(config: ModelConfig, groups: int, members: int, length: int) -> Cache:
    """Room for `length` own tokens of every member."""
    shape = (groups, members, length, config.kv_heads, config.head_size)
    if config.scan:
        stacked = jnp.zeros((config.layers, *shape), config.compute_dtype)
        return Cache(k=stacked, v=stacked)
    empty = tuple(jnp.zeros(shape, config.compute_dtype) for _ in range(config.layers))
    return Cache(k=empty, v=empty)


def decode(
    config: ModelConfig,
    params: Params,
    prefix: Prefix,
    cache: Cache,
    token_BxK: jax.Array,
    step: jax.Array,
) -> tuple[jax.Array, Cache]:
    """One token a member at own position `step`: hidden [B,K,D] and the cache with it."""
    positions = jnp.broadcast_to(prefix.length_B[:, None] + step, token_BxK.shape)[..., None]
    own_mask = (jnp.arange(cache.k[0].shape[2]) <= step)[None, None, None]
    hidden, _, after = _run(
        config, params, token_BxK[..., None], positions, own_mask, prefix, cache, step
    )
    assert after is not None
    return hidden[:, :, 0], after


def head(config: ModelConfig, params: Params) -> jax.Array:
    """The output matrix [D, V]; a tied head is the embedding, transposed."""
    matrix = params["embed"].T if config.tied_head else params["head.kernel"]
    return matrix.astype(config.compute_dtype)


def logits(config: ModelConfig, params: Params, hidden: jax.Array) -> jax.Array:
    """float32 logits [..., V] of hidden states that went through the final norm."""
    return jnp.matmul(hidden, head(config, params), preferred_element_type=jnp.float32)
