"""Which split a board belongs to: a hash of the layout, so no state can be met in both."""

from __future__ import annotations

import jax
import jax.numpy as jnp

HELDOUT_OF = 5  # one layout in five is held out


def layout_hash(*cells: jax.Array) -> jax.Array:
    """uint32 hash of boolean grids; equal layouts have equal hashes on every machine."""
    state = jnp.uint32(2166136261)
    for grid in cells:
        bits = grid.reshape(-1).astype(jnp.uint32)
        weight = jnp.arange(1, bits.size + 1, dtype=jnp.uint32) * jnp.uint32(0x9E3779B1)
        mixed = weight ^ (weight >> 15)
        mixed = (mixed * jnp.uint32(0x85EBCA77)) ^ (mixed >> 13)
        total = (bits * mixed).sum(dtype=jnp.uint32)
        state = (state ^ total) * jnp.uint32(0xC2B2AE3D)
        state = state ^ (state >> 16)
    return state


def is_heldout(layout: jax.Array) -> jax.Array:
    """Whether a layout hash belongs to the held-out split."""
    return layout % HELDOUT_OF == 0
