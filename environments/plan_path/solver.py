"""True distances on a grid with obstacles."""

from __future__ import annotations

import jax
import jax.numpy as jnp

FAR = jnp.int32(1 << 20)


def distances(walls: jax.Array, goal: jax.Array) -> jax.Array:
    """int32 [H, W]: shortest number of moves to `goal`, -1 for walls and unreachable cells."""
    start = jnp.full(walls.shape, FAR).at[goal[0], goal[1]].set(0)

    def relax(values: jax.Array) -> jax.Array:
        padded = jnp.pad(values, 1, constant_values=FAR)
        near = jnp.minimum(
            jnp.minimum(padded[:-2, 1:-1], padded[2:, 1:-1]),
            jnp.minimum(padded[1:-1, :-2], padded[1:-1, 2:]),
        )
        return jnp.where(walls, FAR, jnp.minimum(values, near + 1))

    def changing(carry: tuple[jax.Array, jax.Array]) -> jax.Array:
        return carry[1]

    def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        values = relax(carry[0])
        return values, (values != carry[0]).any()

    values, _ = jax.lax.while_loop(changing, body, (start, jnp.bool_(True)))
    return jnp.where(values >= FAR, -1, values)
