"""Sokoban's reward parts, each on its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from environments.sokoban.solver import lookup
from environments.sokoban.types import State, Trace


def distance(state: State, boxes: int) -> jax.Array:
    """True number of moves to solve; -1 from a deadlock."""
    return lookup(state.level.table, state.boxes, state.agent, boxes)


def outcome(state: State) -> jax.Array:
    """Share of boxes on goals, 1 if solved; the team return of the whole episode."""
    on_goal = (state.boxes & state.level.goals).sum().astype(jnp.float32)
    return on_goal / state.level.goals.sum()


def parts(
    before: State, after: State, trace: Trace, format_ok: jax.Array, boxes: int
) -> dict[str, jax.Array]:
    """Every part, float32, in [-1, 1].

    potential: signed change of the true distance over d_0, so that it telescopes and walking to
    and fro earns nothing; 0 for a list that ends in a deadlock, which deadlock_free tells apart.
    """
    start = jnp.maximum(before.level.start_distance, 1).astype(jnp.float32)
    old, new = distance(before, boxes), distance(after, boxes)
    closer = jnp.clip((old - new).astype(jnp.float32) / start, -1.0, 1.0)
    listed = (trace.listed > 0) & format_ok
    values = {
        "team": outcome(after),
        "format": format_ok,
        "legal": (1.0 - trace.blocked / jnp.maximum(trace.executed, 1)) * listed,
        "deadlock_free": (new >= 0) & listed,
        "executes": (trace.blocked == 0) & listed,
        "potential": jnp.where(new >= 0, closer, 0.0),
    }
    return {name: jnp.asarray(value, jnp.float32) for name, value in values.items()}
