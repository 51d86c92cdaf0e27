"""Plan-Path's reward parts, each on its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from environments.plan_path.types import State, Trace


def distance(state: State) -> jax.Array:
    """True number of moves to the goal; -1 where it cannot be reached."""
    return state.level.distance[state.agent[0], state.agent[1]]


def parts(before: State, after: State, trace: Trace, format_ok: jax.Array) -> dict[str, jax.Array]:
    """Every part, float32, in [-1, 1].

    team: 1 at the goal, else progress beyond the best distance of the episode over d_0, so that
    walking to and fro earns nothing. shape: signed change of the distance over d_0.
    """
    start = before.level.start_distance.astype(jnp.float32)
    closer = (distance(before) - distance(after)).astype(jnp.float32) / start
    progress = jnp.maximum(before.best - distance(after), 0).astype(jnp.float32) / start
    listed = trace.listed > 0
    legal = 1.0 - trace.blocked / jnp.maximum(trace.executed, 1)
    values = {
        "team": jnp.where(distance(after) == 0, 1.0, progress),
        "format": format_ok,
        "legal": legal * listed * format_ok,
        "next": trace.first_is_shortest & listed & format_ok,
        "executes": (trace.blocked == 0) & listed & format_ok,
        "shape": jnp.clip(closer, -1.0, 1.0),
    }
    return {name: jnp.asarray(value, jnp.float32) for name, value in values.items()}


def outcome(state: State) -> jax.Array:
    """Team return of the whole episode: 1 at the goal, else (d_0 - d_best) / d_0."""
    start = state.level.start_distance.astype(jnp.float32)
    return jnp.where(distance(state) == 0, 1.0, (start - state.best) / start)
