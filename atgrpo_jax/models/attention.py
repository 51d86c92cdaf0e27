"""Attention of K members over a shared prefix and over their own tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp


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
    wide = {"preferred_element_type": jnp.float32}
    own = jnp.einsum("bklgnh,bkrgh->bgklnr", q, own_k, **wide)
    mask = jnp.broadcast_to(own_mask, (groups, members, length, own_k.shape[2]))
    own = jnp.where(mask[:, None, :, :, None], own, low)
    largest = own.max(-1, keepdims=True)
    if prefix_k is not None:
        assert prefix_mask is not None
        before = jnp.einsum("bklgnh,bsgh->bgklns", q, prefix_k, **wide)
        before = jnp.where(prefix_mask[:, None, None, None, None], before, low)
        largest = jnp.maximum(largest, before.max(-1, keepdims=True))
    largest = jax.lax.stop_gradient(largest)
    own = jnp.exp(own - largest)
    total = own.sum(-1, keepdims=True)
    out = jnp.einsum("bgklnr,bkrgh->bgklnh", own.astype(own_v.dtype), own_v, **wide)
    if prefix_k is not None:
        before = jnp.exp(before - largest)
        total += before.sum(-1, keepdims=True)
        out += jnp.einsum("bgklns,bsgh->bgklnh", before.astype(own_v.dtype), prefix_v, **wide)
    out = (out / total).astype(own_v.dtype).transpose(0, 2, 3, 1, 4, 5)
    return out.reshape(groups, members, length, heads, size)
