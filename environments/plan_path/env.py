"""Plan-Path: walk from a start to a goal around obstacles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

from environments.legend import DELTAS
from environments.plan_path import reward
from environments.plan_path.generator import generate
from environments.plan_path.types import PlanPathConfig, State, Trace
from environments.split import layout_hash

MOVES_4x2 = jnp.asarray(DELTAS, jnp.int32)


@struct.dataclass
class Params:
    """gymnax's per-call parameters: steps before truncation."""

    max_steps_in_episode: int = 100


class PlanPath(environment.Environment):
    """gymnax environment and game. `step_env` does not reset; a solved board stands still."""

    def __init__(self, config: PlanPathConfig | None = None) -> None:
        super().__init__()
        self.config = config or PlanPathConfig()

    @property
    def name(self) -> str:
        return "plan_path"

    @property
    def num_actions(self) -> int:
        return len(DELTAS)

    @property
    def default_params(self) -> Params:
        return Params()

    def reset_split(self, key: jax.Array, heldout: jax.Array) -> State:
        """A board of the wanted split; the key is consumed."""
        return generate(self.config, key, heldout)

    def is_free(self, state: State, cell: jax.Array) -> jax.Array:
        """Whether a cell is on the board and no obstacle."""
        size = self.config.size
        inside = ((cell >= 0) & (cell < size)).all()
        # Indices are clamped by hand: outside the board JAX would clamp or wrap silently.
        row, column = jnp.clip(cell, 0, size - 1)
        return inside & ~state.level.walls[row, column]

    def move(self, state: State, action: jax.Array) -> State:
        """One move; -1, blocked moves and moves after the goal change nothing."""
        target = state.agent + MOVES_4x2[jnp.clip(action, 0, 3)]
        goes = (action >= 0) & ~self.success(state) & self.is_free(state, target)
        state = replace(state, agent=jnp.where(goes, target, state.agent))
        return replace(state, best=jnp.minimum(state.best, reward.distance(state)))

    def run(self, state: State, moves_M: jax.Array) -> tuple[State, Trace]:
        """Executes a list up to the goal; what is listed beyond it is not executed."""
        first = jnp.clip(moves_M[0], 0, 3)
        shortest = self.optimal_moves(state)[first] & (moves_M[0] >= 0)

        def body(carry: tuple[State, Any, Any], action: jax.Array) -> tuple[tuple, None]:
            now, executed, blocked = carry
            runs = (action >= 0) & ~self.success(now)
            then = self.move(now, action)
            stuck = runs & (then.agent == now.agent).all()
            return (then, executed + runs, blocked + stuck), None

        start = (state, jnp.int32(0), jnp.int32(0))
        (after, executed, blocked), _ = jax.lax.scan(body, start, moves_M)
        # The level is passed on untouched, so that a vmap over lists does not copy its table.
        after = replace(after, level=state.level)
        return after, Trace((moves_M >= 0).sum(), executed, blocked, shortest)

    def parts(
        self, before: State, after: State, trace: Trace, format_ok: jax.Array
    ) -> dict[str, jax.Array]:
        """See reward.parts."""
        return reward.parts(before, after, trace, format_ok)

    def optimal_moves(self, state: State) -> jax.Array:
        """bool [4]: moves that bring the goal one step nearer."""
        moved = jax.vmap(lambda action: reward.distance(self.move(state, action)))(jnp.arange(4))
        return moved == reward.distance(state) - 1

    def move_kinds(self, state: State) -> jax.Array:
        """int32 [4], index into legend.KINDS: blocked or walk."""
        return jax.vmap(lambda d: self.is_free(state, state.agent + d))(MOVES_4x2).astype(jnp.int32)

    def distance(self, state: State) -> jax.Array:
        """True number of moves to the goal."""
        return reward.distance(state)

    def success(self, state: State) -> jax.Array:
        """Whether the agent stands on the goal."""
        return (state.agent == state.level.goal).all()

    def terminated(self, state: State) -> jax.Array:
        """Whether nothing more can be won: the goal can always be reached, so success alone."""
        return self.success(state)

    def outcome(self, state: State) -> jax.Array:
        """See reward.outcome."""
        return reward.outcome(state)

    def layout_hash(self, state: State) -> jax.Array:
        """uint32 hash of the obstacles; it decides the split."""
        return layout_hash(state.level.walls)

    def view(self, state: State) -> dict[str, jax.Array]:
        """What a renderer draws."""
        return {
            "walls": state.level.walls,
            "agent": state.agent,
            "goal": state.level.goal,
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
        """One move; reward is the change of distance over d_0, plus 1 on entering the goal."""
        after = self.move(state, action)
        gain = (reward.distance(state) - reward.distance(after)) / state.level.start_distance
        entered = self.success(after) & ~self.success(state)
        done = self.success(after)
        info = {"discount": 1.0 - done, "success": done}
        return self.get_obs(after), after, gain + entered, done, info

    def get_obs(self, state: State, params: Any = None, key: Any = None) -> jax.Array:
        """float32 [3, H, W]: obstacles, goal, agent."""
        empty = jnp.zeros_like(state.level.walls)
        goal = empty.at[state.level.goal[0], state.level.goal[1]].set(True)
        agent = empty.at[state.agent[0], state.agent[1]].set(True)
        return jnp.stack([state.level.walls, goal, agent]).astype(jnp.float32)

    def action_space(self, params: Params | None = None) -> spaces.Discrete:
        """Up, down, left, right."""
        return spaces.Discrete(self.num_actions)

    def observation_space(self, params: Params) -> spaces.Box:
        """Three planes of zeros and ones."""
        shape = (3, self.config.size, self.config.size)
        return spaces.Box(0.0, 1.0, shape, jnp.float32)
