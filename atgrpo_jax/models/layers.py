"""The layers of a decoder and everything that shapes them; the only place where NNX is used."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from atgrpo_jax.models.rope import RopeScaling, frequencies, rotate


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Every size and switch that changes the result, and how it is computed."""

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
    max_positions: int
    rope_scaling: RopeScaling | None = None
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    compute_dtype: str = "float32"
    remat: str = "none"  # of a layer's activations: none keeps all, dots products, full nothing
    scan: bool = False  # one compiled layer for all, parameters stacked [layers, ...]


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


class Attention(nnx.Module):
    """Projections of one layer; the caller says what is attended."""

    def __init__(self, c: ModelConfig, rngs: nnx.Rngs) -> None:
        self.q = Linear(c.width, c.heads * c.head_size, c.qkv_bias, rngs)
        self.k = Linear(c.width, c.kv_heads * c.head_size, c.qkv_bias, rngs)
        self.v = Linear(c.width, c.kv_heads * c.head_size, c.qkv_bias, rngs)
        self.o = Linear(c.heads * c.head_size, c.width, c.output_bias, rngs)
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
        frequency = frequencies(c.head_size, c.rope_theta, c.rope_scaling)
        return rotate(q, positions, frequency), rotate(k, positions, frequency), v


class FeedForward(nnx.Module):
    """SwiGLU."""

    def __init__(self, c: ModelConfig, rngs: nnx.Rngs) -> None:
        self.gate = Linear(c.width, c.ffn, c.ffn_bias, rngs)
        self.up = Linear(c.width, c.ffn, c.ffn_bias, rngs)
        self.down = Linear(c.ffn, c.width, c.ffn_bias, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class Layer(nnx.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, c: ModelConfig, rngs: nnx.Rngs) -> None:
        self.attention_norm = RmsNorm(c.width, c.norm_eps)
        self.attention = Attention(c, rngs)
        self.ffn_norm = RmsNorm(c.width, c.norm_eps)
        self.ffn = FeedForward(c, rngs)


class Outer(nnx.Module):
    """What is there once: embedding, final norm and, when it is not tied, a head."""

    def __init__(self, c: ModelConfig, rngs: nnx.Rngs) -> None:
        scale = 0.02
        self.embed = nnx.Param(scale * jax.random.normal(rngs.params(), (c.vocab_size, c.width)))
        self.norm = RmsNorm(c.width, c.norm_eps)
        self.head = None if c.tied_head else Linear(c.width, c.vocab_size, False, rngs)
