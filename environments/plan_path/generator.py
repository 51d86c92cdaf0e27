"""Random boards whose goal can be reached."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp

from environments.plan_path.solver import distances
from environments.plan_path.types import Level, PlanPathConfig, State
from environments.split import is_heldout, layout_hash


def draw(config: PlanPathConfig, key: jax.Array) -> State:
    """One board, perhaps unusable: free start and goal that differ; the key is consumed."""
    wall_key, place_key = jax.random.split(key)
    size = config.size
    walls = jax.random.uniform(wall_key, (size, size)) < config.wall_rate
    # The two free cells of largest random priority; a wall's priority is below every free one's.
    priority = jax.random.uniform(place_key, (size * size,)) - walls.reshape(-1) * 2.0
    best = jax.lax.top_k(priority, 2)
    start, goal = (jnp.stack(jnp.divmod(cell, size)).astype(jnp.int32) for cell in best[1])
    table = distances(walls, goal)
    away = table[start[0], start[1]]
    level = Level(walls=walls, goal=goal, distance=table, start_distance=away)
    return State(level=level, agent=start, best=away, valid=(best[0] > -1.0).all() & (away > 0))


def generate(config: PlanPathConfig, key: jax.Array, heldout: jax.Array) -> State:
    """A usable board of the wanted split; `valid` is False only if all attempts failed."""

    def usable(state: State) -> jax.Array:
        return state.valid & (is_heldout(layout_hash(state.level.walls)) == heldout)

    def going(carry: tuple[jax.Array, State]) -> jax.Array:
        return (carry[0] < config.attempts) & ~usable(carry[1])

    def body(carry: tuple[jax.Array, State]) -> tuple[jax.Array, State]:
        return carry[0] + 1, draw(config, jax.random.fold_in(key, carry[0]))

    first = draw(config, jax.random.fold_in(key, 0))
    _, state = jax.lax.while_loop(going, body, (jnp.int32(1), first))
    return replace(state, valid=usable(state))
