"""One decoder for prefill, packed training rows and decoding.

A row is one prompt (the prefix) and K members that share it. NNX declares the layers; outside this
folder a model is `Params`, a flat plain dict of arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, struct

Params = dict[str, jax.Array]


@dataclass(frozen=True)
class ModelConfig:
    """Every size and switch that changes the result; names follow the dimension key."""

    family: str
    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    rope_theta: float
    norm_eps: float
    tied_head: bool
    qk_norm: bool
    attention_bias: bool
    max_positions: int
    compute_dtype: str


@struct.dataclass
class Prefix:
    """Keys and values of right-padded prompts, a tuple over layers of [B, S, G, H]."""

    k: tuple[jax.Array, ...]
    v: tuple[jax.Array, ...]
    mask_BxS: jax.Array
    length_B: jax.Array


@struct.dataclass
class Cache:
    """Keys and values of the members' own tokens, a tuple over layers of [B, K, R, G, H]."""

    k: tuple[jax.Array, ...]
    v: tuple[jax.Array, ...]


def attention(
    q: jax.Array,
    own_k: jax.Array,
    own_v: jax.Array,
    own_mask: jax.Array,
    prefix_k: jax.Array | None = None,
    prefix_v: jax.Array | None = None,
    prefix_mask: jax.Array | None = None,
) -> jax.Array:
    """q [B,K,L,N,H] over [prefix [B,S,G,H] | own [B,K,R,G,H]] -> [B,K,L,N,H].

    `own_mask` broadcasts to [B,K,L,R]. The prefix is read in place by all K members, and query
    heads share key-value heads without a copy. One softmax in float32 spans both parts; it is
    kept in two pieces because joining them costs more than the products on a CPU.
    """
    groups, members, length, heads, size = q.shape
    kv_heads = own_k.shape[3]
    q = q.reshape(groups, members, length, kv_heads, heads // kv_heads, size) * size**-0.5
    low = jnp.finfo(jnp.float32).min
    own = jnp.einsum("bklgnh,bkrgh->bgklnr", q, own_k).astype(jnp.float32)
    mask = jnp.broadcast_to(own_mask, (groups, members, length, own_k.shape[2]))
    own = jnp.where(mask[:, None, :, :, None], own, low)
    largest = own.max(-1, keepdims=True)
    if prefix_k is not None:
        assert prefix_mask is not None
        before = jnp.einsum("bklgnh,bsgh->bgklns", q, prefix_k).astype(jnp.float32)
        before = jnp.where(prefix_mask[:, None, None, None, None], before, low)
        largest = jnp.maximum(largest, before.max(-1, keepdims=True))
    largest = jax.lax.stop_gradient(largest)
    own = jnp.exp(own - largest)
    total = own.sum(-1, keepdims=True)
    out = jnp.einsum("bgklnr,bkrgh->bgklnh", own.astype(own_v.dtype), own_v)
    if prefix_k is not None:
        before = jnp.exp(before - largest)
        total += before.sum(-1, keepdims=True)
        out += jnp.einsum("bgklns,bsgh->bgklnh", before.astype(own_v.dtype), prefix_v)
    out = (out / total.astype(out.dtype)).transpose(0, 2, 3, 1, 4, 5)
    return out.reshape(groups, members, length, heads, size)


class Linear(nnx.Module):
    """x @ kernel [in, out] (+ bias)."""

    def __init__(self, size_in: int, size_out: int, bias: bool, rngs: nnx.Rngs) -> None:
        scale = size_in**-0.5
        self.kernel = nnx.Param(scale * jax.random.normal(rngs.params(), (size_in, size_out)))
        self.bias = nnx.Param(jnp.zeros(size_out)) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        out = x @ self.kernel[...].astype(x.dtype)
        return out if self.bias is None else out + self.bias[...].astype(x.dtype)


class RmsNorm(nnx.Module):
    """Root-mean-square norm over the last axis, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        self.scale = nnx.Param(jnp.ones(size))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        wide *= jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + self.eps)
        return self.scale[...].astype(x.dtype) * wide.astype(x.dtype)


def rope(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
    """Rotates x [..., heads, H] by `positions` [...], halves paired as in the published weights."""
    half = x.shape[-1] // 2
    frequency = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions.astype(jnp.float32)[..., None, None] * frequency
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


class Attention(nnx.Module):
    """Projections of one layer; the caller says what is attended."""

    def __init__(self, c: ModelConfig, rngs: nnx.Rngs) -> None:
        self.q = Linear(c.width, c.heads * c.head_size, c.attention_bias, rngs)
        self.k = Linear(c.width, c.kv_heads * c.head_size, c.attention_bias, rngs)
        self.v = Linear(c.width, c.kv_heads * c.head_size, c.attention_bias, rngs)
        self.o = Linear(c.heads * c.head_size, c.width, c.attention_bias, rngs)
        self.q_norm = RmsNorm(c.head_size, c.norm_eps) if c.qk_norm else None
        self.k_norm = RmsNorm(c.head_size, c.norm_eps) if c.qk_norm else None
        self.config = c

    def project(self, x: jax.Array, positions: jax.Array) -> tuple[jax.Array, ...]:
        """x [B,K,L,D] -> q [B,K,L,N,H], k and v [B,K,L,G,H], rotated."""
        c = self.config
        q = self.q(x).reshape(*x.shape[:-1], c.heads, c.head_size)
        k = self.k(x).reshape(*x.shape[:-1], c.kv_heads, c.head_size)
        v = self.v(x).reshape(*x.shape[:-1], c.kv_heads, c.head_size)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return rope(q, positions, c.rope_theta), rope(k, positions, c.rope_theta), v


class FeedForward(nnx.Module):
    """SwiGLU."""

    def __init__(self, c: ModelConfig, rngs: nnx.Rngs) -> None:
        self.gate = Linear(c.width, c.ffn, False, rngs)
        self.up = Linear(c.width, c.ffn, False, rngs)
        self.down = Linear(c.ffn, c.width, False, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class Layer(nnx.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, c: ModelConfig, rngs: nnx.Rngs) -> None:
        self.attention_norm = RmsNorm(c.width, c.norm_eps)
        self.attention = Attention(c, rngs)
        self.ffn_norm = RmsNorm(c.width, c.norm_eps)
        self.ffn = FeedForward(c, rngs)


class Decoder(nnx.Module):
    """Embedding, layers, final norm and, when it is not tied, a head."""

    def __init__(self, c: ModelConfig, rngs: nnx.Rngs) -> None:
        scale = 0.02
        self.embed = nnx.Param(scale * jax.random.normal(rngs.params(), (c.vocab_size, c.width)))
        self.layers = nnx.List([Layer(c, rngs) for _ in range(c.layers)])
        self.norm = RmsNorm(c.width, c.norm_eps)
        self.head = None if c.tied_head else Linear(c.width, c.vocab_size, False, rngs)


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in path)


@lru_cache(maxsize=16)
def _structure(config: ModelConfig) -> tuple[Any, dict[str, tuple[Any, ...]], Any]:
    """The module's graph and, by parameter name, its path and abstract leaf."""
    abstract = nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(0)))
    graph, state = nnx.split(abstract)
    flat = nnx.to_flat_state(state)
    return graph, {_name(path): path for path, _ in flat}, {_name(p): leaf for p, leaf in flat}


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter by name; kernels are [in, out]."""
    return {name: tuple(leaf.shape) for name, leaf in _structure(config)[2].items()}


def init_params(config: ModelConfig, key: jax.Array) -> Params:
    """Fresh float32 parameters; the key is consumed."""
    state = nnx.state(Decoder(config, nnx.Rngs(key)))
    return {_name(path): leaf[...] for path, leaf in nnx.to_flat_state(state)}


def _module(config: ModelConfig, params: Params) -> Decoder:
    graph, paths, leaves = _structure(config)
    if params.keys() != paths.keys():
        odd = sorted(params.keys() ^ paths.keys())[0]
        fault = "is missing" if odd in paths else "is not part of it"
        raise ValueError(f"parameters do not fit the model: {odd!r} {fault}")
    flat = {paths[name]: leaves[name].replace(params[name]) for name in paths}
    return nnx.merge(graph, nnx.from_flat_state(flat))


def _run(
    config: ModelConfig,
    params: Params,
    tokens_BxKxL: jax.Array,
    positions_BxKxL: jax.Array,
    own_mask: jax.Array,
    prefix: Prefix | None = None,
    cache: Cache | None = None,
    step: jax.Array | None = None,
) -> tuple[jax.Array, list[jax.Array], list[jax.Array]]:
    """Hidden states [B,K,L,D] after the final norm, and every layer's own keys and values."""
    model = _module(config, params)
    x = model.embed[...][tokens_BxKxL].astype(config.compute_dtype)
    keys, values = [], []
    for i, layer in enumerate(model.layers):
        q, k, v = layer.attention.project(layer.attention_norm(x), positions_BxKxL)
        if cache is not None:
            assert step is not None
            k = jax.lax.dynamic_update_slice_in_dim(cache.k[i], k, step, axis=2)
            v = jax.lax.dynamic_update_slice_in_dim(cache.v[i], v, step, axis=2)
        keys.append(k)
        values.append(v)
        before = (
            (None, None, None) if prefix is None else (prefix.k[i], prefix.v[i], prefix.mask_BxS)
        )
        out = attention(q, k, v, own_mask, *before)
        x = x + layer.attention.o(out.reshape(*x.shape[:-1], -1))
        x = x + layer.ffn(layer.ffn_norm(x))
    return model.norm(x), keys, values


def _causal(length: int) -> jax.Array:
    return jnp.tril(jnp.ones((length, length), bool))


def forward(
    config: ModelConfig, params: Params, tokens_BxL: jax.Array, mask_BxL: jax.Array
) -> jax.Array:
    """Plain causal pass over right-padded sequences: hidden [B,L,D]."""
    length = tokens_BxL.shape[1]
    positions = jnp.broadcast_to(jnp.arange(length), tokens_BxL.shape)[:, None]
    mask = _causal(length) & jnp.asarray(mask_BxL)[:, None, None]
    return _run(config, params, jnp.asarray(tokens_BxL)[:, None], positions, mask)[0][:, 0]


def prefill(
    config: ModelConfig, params: Params, tokens_BxS: jax.Array, mask_BxS: jax.Array
) -> tuple[jax.Array, Prefix]:
    """Computes right-padded prompts once: hidden [B,D] at each last token, and the prefix."""
    length = tokens_BxS.shape[1]
    positions = jnp.broadcast_to(jnp.arange(length), tokens_BxS.shape)[:, None]
    mask_BxS = jnp.asarray(mask_BxS)
    mask = _causal(length) & mask_BxS[:, None, None, :]
    hidden, k, v = _run(config, params, jnp.asarray(tokens_BxS)[:, None], positions, mask)
    length_B = mask_BxS.sum(-1).astype(jnp.int32)
    last_BxD = jnp.take_along_axis(hidden[:, 0], (length_B - 1)[:, None, None], axis=1)[:, 0]
    prefix = Prefix(tuple(i[:, 0] for i in k), tuple(i[:, 0] for i in v), mask_BxS, length_B)
    return last_BxD, prefix


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
    hidden, k, v = _run(
        config, params, token_BxK[..., None], positions, own_mask, prefix, cache, step
    )
    return hidden[:, :, 0], Cache(tuple(k), tuple(v))


def head(config: ModelConfig, params: Params) -> jax.Array:
    """The output matrix [D, V]; a tied head is the embedding, transposed."""
    matrix = params["embed"].T if config.tied_head else params["head.kernel"]
    return matrix.astype(config.compute_dtype)


def logits(config: ModelConfig, params: Params, hidden: jax.Array) -> jax.Array:
    """float32 logits [..., V] of hidden states that went through the final norm."""
    return (hidden @ head(config, params)).astype(jnp.float32)
