"""Sokoban: push every box onto a goal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

from environments.legend import DELTAS
from environments.sokoban import reward
from environments.sokoban.generator import generate
from environments.sokoban.types import SokobanConfig, State, Trace
from environments.split import layout_hash

MOVES_4x2 = jnp.asarray(DELTAS, jnp.int32)
BLOCKED, WALK, PUSH = range(3)  # indices into legend.KINDS


@struct.dataclass
class Params:
    """gymnax's per-call parameters: steps before truncation."""

    max_steps_in_episode: int = 120


class Sokoban(environment.Environment):
    """gymnax environment and game. `step_env` does not reset; a solved board stands still."""

    def __init__(self, config: SokobanConfig | None = None) -> None:
        super().__init__()
        self.config = config or SokobanConfig()

    @property
    def name(self) -> str:
        return "sokoban"

    @property
    def num_actions(self) -> int:
        return len(DELTAS)

    @property
    def default_params(self) -> Params:
        return Params()

    def reset_split(self, key: jax.Array, heldout: jax.Array) -> State:
        """A board of the wanted split; the key is consumed."""
        return generate(self.config, key, heldout)

    def kind(self, state: State, delta: jax.Array) -> jax.Array:
        """What one step does: BLOCKED, WALK or PUSH. The outer wall keeps all indices inside."""
        size = self.config.size
        near = state.agent + delta
        far = jnp.clip(near + delta, 0, size - 1)
        wall, box = state.level.walls, state.boxes
        pushable = ~wall[far[0], far[1]] & ~box[far[0], far[1]]
        onto_box = box[near[0], near[1]]
        free = jnp.where(onto_box, PUSH, WALK)
        return jnp.where(wall[near[0], near[1]] | (onto_box & ~pushable), BLOCKED, free)

    def move(self, state: State, action: jax.Array) -> State:
        """One move; -1, blocked moves and moves after solving change nothing."""
        delta = MOVES_4x2[jnp.clip(action, 0, 3)]
        goes = (action >= 0) & ~self.success(state)
        kind = jnp.where(goes, self.kind(state, delta), BLOCKED)
        near = state.agent + delta
        far = jnp.clip(near + delta, 0, self.config.size - 1)
        pushed = state.boxes.at[near[0], near[1]].set(False).at[far[0], far[1]].set(True)
        return replace(
            state,
            agent=jnp.where(kind == BLOCKED, state.agent, near),
            boxes=jnp.where(kind == PUSH, pushed, state.boxes),
        )

    def run(self, state: State, moves_M: jax.Array) -> tuple[State, Trace]:
        """Executes a list until solved; what is listed beyond that is not executed."""

        def body(carry: tuple[State, Any, Any], action: jax.Array) -> tuple[tuple, None]:
            now, executed, blocked = carry
            runs = (action >= 0) & ~self.success(now)
            then = self.move(now, action)
            stuck = runs & (then.agent == now.agent).all()
            return (then, executed + runs, blocked + stuck), None

        start = (state, jnp.int32(0), jnp.int32(0))
        (after, executed, blocked), _ = jax.lax.scan(body, start, moves_M)
        # The level is passed on untouched, so that a vmap over lists does not copy the table.
        after = replace(after, level=state.level)
        return after, Trace((moves_M >= 0).sum(), executed, blocked)

    def parts(
        self, before: State, after: State, trace: Trace, format_ok: jax.Array
    ) -> dict[str, jax.Array]:
        """See reward.parts."""
        return reward.parts(before, after, trace, format_ok, self.config.boxes)

    def optimal_moves(self, state: State) -> jax.Array:
        """bool [4]: moves that bring the solution one step nearer."""
        moved = jax.vmap(lambda action: self.distance(self.move(state, action)))(jnp.arange(4))
        return (moved == self.distance(state) - 1) & (moved >= 0)

    def move_kinds(self, state: State) -> jax.Array:
        """int32 [4], index into legend.KINDS."""
        return jax.vmap(lambda delta: self.kind(state, delta))(MOVES_4x2).astype(jnp.int32)

    def distance(self, state: State) -> jax.Array:
        """True number of moves to solve; -1 from a deadlock."""
        return reward.distance(state, self.config.boxes)

    def success(self, state: State) -> jax.Array:
        """Whether all boxes stand on goals."""
        return (state.boxes == state.level.goals).all()

    def terminated(self, state: State) -> jax.Array:
        """Whether nothing more can be won: solved, or a deadlock."""
        return self.success(state) | (self.distance(state) < 0)

    def outcome(self, state: State) -> jax.Array:
        """See reward.outcome."""
        return reward.outcome(state)

    def layout_hash(self, state: State) -> jax.Array:
        """uint32 hash of walls and goals; it decides the split."""
        return layout_hash(state.level.walls, state.level.goals)

    def view(self, state: State) -> dict[str, jax.Array]:
        """What a renderer draws."""
        return {
            "walls": state.level.walls,
            "goals": state.level.goals,
            "boxes": state.boxes,
            "agent": state.agent,
            "kinds": self.move_kinds(state),
            "solved": self.success(state),
        }

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        """A training board."""
        state = self.reset_split(key, jnp.bool_(False))
        return self.get_obs(state), state

    def step_env(
        self, key: jax.Array, state: State, action: jax.Array, params: Params
    ) -> tuple[jax.Array, State, jax.Array, jax.Array, dict[str, Any]]:
        """One move; reward is the potential part, plus 1 on solving."""
        after = self.move(state, action)
        solved = self.success(after)
        trace = Trace(jnp.int32(1), jnp.int32(1), jnp.int32(0))
        gain = self.parts(state, after, trace, jnp.bool_(True))["potential"]
        live = ~self.terminated(state)
        done = self.terminated(after)
        info = {"discount": 1.0 - done, "success": solved}
        return self.get_obs(after), after, jnp.where(live, gain + solved, 0.0), done, info

    def get_obs(self, state: State, params: Any = None, key: Any = None) -> jax.Array:
        """float32 [4, H, W]: walls, goals, boxes, agent."""
        agent = jnp.zeros_like(state.boxes).at[state.agent[0], state.agent[1]].set(True)
        planes = [state.level.walls, state.level.goals, state.boxes, agent]
        return jnp.stack(planes).astype(jnp.float32)

    def action_space(self, params: Params | None = None) -> spaces.Discrete:
        """Up, down, left, right."""
        return spaces.Discrete(self.num_actions)

    def observation_space(self, params: Params) -> spaces.Box:
        """Four planes of zeros and ones."""
        shape = (4, self.config.size, self.config.size)
        return spaces.Box(0.0, 1.0, shape, jnp.float32)
