"""Solvable boards by reverse play: boxes start on goals and are pulled away."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp

from environments.legend import DELTAS
from environments.sokoban.solver import distances, lookup
from environments.sokoban.types import Level, SokobanConfig, State
from environments.split import is_heldout, layout_hash

PULL = 0.8  # chance to take along a box that stands behind a step


def draw_layout(config: SokobanConfig, key: jax.Array) -> tuple[jax.Array, ...]:
    """walls, goals bool [H, W], the agent's cell [2] and whether all found a free cell."""
    side, count = config.size - 2, (config.size - 2) ** 2
    wall_key, place_key = jax.random.split(key)
    inner = jax.random.uniform(wall_key, (count,)) < config.wall_rate
    # Free cells by random priority; a wall's priority is below every free cell's.
    priority, order = jax.lax.top_k(
        jax.random.uniform(place_key, (count,)) - 2.0 * inner, config.boxes + 1
    )
    goals = jnp.zeros(count, bool).at[order[:-1]].set(True)
    pad = lambda grid, value: jnp.pad(grid.reshape(side, side), 1, constant_values=value)  # noqa: E731
    agent = jnp.stack(jnp.divmod(order[-1], side)).astype(jnp.int32) + 1
    return pad(inner, True), pad(goals, False), agent, (priority > -1.0).all()


def reverse_play(
    walls: jax.Array, boxes: jax.Array, agent: jax.Array, steps: int, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Random steps backwards in time: the agent walks and pulls boxes; the key is consumed."""
    deltas = jnp.asarray(DELTAS, jnp.int32)
    move_key, pull_key = jax.random.split(key)
    moves = jax.random.randint(move_key, (steps,), 0, 4)
    pulls = jax.random.bernoulli(pull_key, PULL, (steps,))

    def body(carry: tuple[jax.Array, jax.Array], step: tuple[jax.Array, jax.Array]) -> tuple:
        boxes, agent = carry
        delta = deltas[step[0]]
        to, behind = agent + delta, agent - delta
        free = ~walls[to[0], to[1]] & ~boxes[to[0], to[1]]
        pulled = free & step[1] & boxes[behind[0], behind[1]]
        moved = boxes.at[behind[0], behind[1]].set(False).at[agent[0], agent[1]].set(True)
        return (jnp.where(pulled, moved, boxes), jnp.where(free, to, agent)), None

    return jax.lax.scan(body, (boxes, agent), (moves, pulls))[0]


def draw(config: SokobanConfig, key: jax.Array, heldout: jax.Array) -> State:
    """One board without its table; `valid` says whether it is unsolved and of the split."""
    layout_key, play_key = jax.random.split(key)
    walls, goals, agent, has_room = draw_layout(config, layout_key)
    boxes, agent = reverse_play(walls, goals, agent, config.reverse_steps, play_key)
    of_split = is_heldout(layout_hash(walls, goals)) == heldout
    level = Level(walls, goals, jnp.zeros((0, 0), jnp.int16), jnp.int32(0))
    return State(level, boxes, agent, has_room & of_split & (boxes != goals).any())


def generate(config: SokobanConfig, key: jax.Array, heldout: jax.Array) -> State:
    """A solvable, unsolved board of the wanted split; the key is consumed.

    `valid` is False only if all `attempts` failed.
    """

    def going(carry: tuple[jax.Array, State]) -> jax.Array:
        return (carry[0] < config.attempts) & ~carry[1].valid

    def body(carry: tuple[jax.Array, State]) -> tuple[jax.Array, State]:
        return carry[0] + 1, draw(config, jax.random.fold_in(key, carry[0]), heldout)

    first = draw(config, jax.random.fold_in(key, 0), heldout)
    _, state = jax.lax.while_loop(going, body, (jnp.int32(1), first))
    walls, goals = state.level.walls, state.level.goals
    table = distances(walls[1:-1, 1:-1], goals[1:-1, 1:-1], config.boxes)
    away = lookup(table, state.boxes, state.agent, config.boxes)
    return replace(state, level=replace(state.level, table=table, start_distance=away))
