"""Any board game with four moves as a Task: batched on the device, read and written on the host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from atgrpo_jax.workflows import Agent, Stage
from environments.parser import Parse, parse_moves
from environments.plan_path import text as plan_path_text
from environments.scene import Effect, Proposal, Scene, View
from environments.sokoban import text as sokoban_text
from environments.task import Message, Report, Scores, Status

TEXTS: dict[str, ModuleType] = {"sokoban": sokoban_text, "plan_path": plan_path_text}
RENDERINGS = ("compact", "grid")


class Game(Protocol):
    """One board game in pure JAX; every method works on one environment and is vmapped here."""

    name: str

    def reset_split(self, key: jax.Array, heldout: jax.Array) -> Any:
        """A level of one split; its `valid` is False only if bounded attempts ran out."""
        ...

    def run(self, state: Any, moves_M: jax.Array) -> tuple[Any, Any]:
        """The state after a list (-1 padded) and its trace: listed, executed, blocked counts."""
        ...

    def parts(
        self, before: Any, after: Any, trace: Any, format_ok: jax.Array
    ) -> dict[str, jax.Array]:
        """Reward parts, float32 scalars in [-1, 1]."""
        ...

    def success(self, state: Any) -> jax.Array:
        """Whether the board is solved."""
        ...

    def terminated(self, state: Any) -> jax.Array:
        """Whether nothing more can be won: solved, or lost for good."""
        ...

    def outcome(self, state: Any) -> jax.Array:
        """Whole-trajectory team return in [0, 1]."""
        ...

    def view(self, state: Any) -> dict[str, jax.Array]:
        """The small arrays a renderer draws."""
        ...


class Tried(NamedTuple):
    """A list per environment run from the current state; arrays [E] and a view of the result."""

    executed: jax.Array
    blocked: jax.Array
    solved: jax.Array
    moved: jax.Array
    view: dict[str, jax.Array]


@dataclass(frozen=True)
class GameState:
    """E environments: device states, and per environment what agents have been told."""

    boards: Any
    proposals: tuple[tuple[Proposal, ...], ...]
    last: tuple[Effect | None, ...]
    moves_E: np.ndarray


def _one(view: dict[str, np.ndarray], e: int) -> View:
    return {name: array[e] for name, array in view.items()}


def _index(parses: Sequence[Parse], max_moves: int) -> np.ndarray:
    """int32 [len(parses), M], padded with -1; an unreadable reply is a row of -1."""
    moves = np.full((len(parses), max_moves), -1, np.int32)
    for row, parse in zip(moves, parses, strict=True):
        row[: len(parse.moves)] = parse.moves
    return moves


class GameTask:
    """Task over a Game. States are immutable; score and advance compile once per batch shape."""

    def __init__(self, game: Game, rendering: str = "compact", max_moves: int = 10) -> None:
        if game.name not in TEXTS:
            raise ValueError(f"game {game.name!r} has no text: add it to environments.game.TEXTS")
        if rendering not in RENDERINGS:
            raise ValueError(f"rendering {rendering!r} is unknown: use one of {RENDERINGS}")
        if max_moves < 1:
            raise ValueError(f"max_moves is {max_moves}: use at least 1")
        self.game, self.text, self.max_moves = game, TEXTS[game.name], max_moves
        self._render = getattr(self.text, rendering)
        self._reset = jax.jit(jax.vmap(game.reset_split))
        self._view = jax.jit(jax.vmap(game.view))
        self._success = jax.jit(jax.vmap(game.success))
        self._terminated = jax.jit(jax.vmap(game.terminated))
        self._outcome = jax.jit(jax.vmap(game.outcome))
        self._score = jax.jit(jax.vmap(jax.vmap(self._score_one, (None, 0, 0))))
        self._simulate = jax.jit(jax.vmap(lambda state, moves: self._try_one(state, moves)[1]))
        self._advance = jax.jit(jax.vmap(self._try_one))
        self._parts = self._part_names()

    def _part_names(self) -> tuple[str, ...]:
        def trial(key: jax.Array) -> dict[str, jax.Array]:
            state = self.game.reset_split(key, jnp.bool_(False))
            moves = jnp.full(self.max_moves, -1, jnp.int32)
            return self._score_one(state, moves, jnp.bool_(True))

        return tuple(sorted(jax.eval_shape(trial, jax.random.key(0))))

    def _score_one(self, state: Any, moves_M: jax.Array, ok: jax.Array) -> dict[str, jax.Array]:
        after, trace = self.game.run(state, moves_M)
        return self.game.parts(state, after, trace, ok)

    def _try_one(self, state: Any, moves_M: jax.Array) -> tuple[Any, Tried]:
        after, trace = self.game.run(state, moves_M)
        old, new = self.game.view(state), self.game.view(after)
        moved = jnp.any(jnp.stack([jnp.any(old[name] != new[name]) for name in old]))
        solved = self.game.success(after)
        return after, Tried(trace.executed, trace.blocked, solved, moved, new)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of all reward parts, sorted, "team" among them."""
        return self._parts

    def reset(self, keys_Ex2: np.ndarray, heldout: bool) -> GameState:
        """E fresh levels; keys are raw uint32 threefry keys [E, 2].

        A level that could not be made is never live. Raises ValueError when most could not.
        """
        E = len(keys_Ex2)
        keys = jax.random.wrap_key_data(jnp.asarray(keys_Ex2, jnp.uint32))
        boards = self._reset(keys, np.full(E, heldout))
        made = int(np.sum(jax.device_get(boards.valid)))
        if made < E / 2:
            raise ValueError(
                f"{E - made} of {E} {self.game.name} boards could not be made: there is no room; "
                "raise config.environment.size, or lower boxes or wall_rate"
            )
        return GameState(boards, ((),) * E, (None,) * E, np.zeros(E, np.int32))

    def repeat(self, state: GameState, K: int) -> GameState:
        """Every environment K times, environment-major."""
        boards = jax.tree.map(lambda leaf: jnp.repeat(leaf, K, axis=0), state.boards)
        proposals = tuple(row for row in state.proposals for _ in range(K))
        last = tuple(effect for effect in state.last for _ in range(K))
        return GameState(boards, proposals, last, np.repeat(state.moves_E, K))

    def observe(self, state: GameState, agent: Agent, turn: int) -> list[list[Message]]:
        """One user message per environment, with the proposals of the agents this one sees."""
        view = jax.device_get(self._view(state.boards))
        conversations = []
        for e, (proposals, last) in enumerate(zip(state.proposals, state.last, strict=True)):
            seen = tuple(p for p in proposals if p.agent in agent.sees)
            scene = Scene(agent, turn, _one(view, e), seen, last, self.max_moves)
            conversations.append([{"role": "user", "content": self._render(scene)}])
        return conversations

    def score(
        self,
        state: GameState,
        agent: Agent,
        replies: Sequence[Sequence[str]],
        live_E: np.ndarray,
    ) -> Scores:
        """Reward parts [E, K], each reply tried from the same state. Zeros where not live.

        Raises ValueError when a live environment has another number of replies than the first.
        """
        live = np.asarray(live_E, bool)
        if len(replies) != len(state.last) or live.shape != (len(replies),):
            raise ValueError(
                f"{len(replies)} reply lists and live {live.shape} for {len(state.last)} "
                "environments: pass one of each per environment"
            )
        counts = {len(row) for row, on in zip(replies, live, strict=True) if on}
        if len(counts) > 1:
            raise ValueError(f"reply counts {sorted(counts)} differ: pass K per live environment")
        K = counts.pop() if counts else max(map(len, replies), default=0)
        unread = Parse((), False, "not live")
        parses = [
            parse_moves(row[k], self.max_moves) if on else unread
            for row, on in zip(replies, live, strict=True)
            for k in range(K)
        ]
        moves = _index(parses, self.max_moves).reshape(len(live), K, self.max_moves)
        ok = np.array([parse.ok for parse in parses], bool).reshape(len(live), K)
        scored = jax.device_get(self._score(state.boards, moves, ok))
        parts = {
            name: np.where(live[:, None], part, 0).astype(np.float32)
            for name, part in scored.items()
        }
        valid = np.asarray(jax.device_get(state.boards.valid))
        return Scores(parts, np.repeat(valid[:, None], K, axis=1))

    def advance(
        self, state: GameState, chosen: Mapping[str, Sequence[str | None]], stage: Stage, turn: int
    ) -> tuple[GameState, dict[str, Report]]:
        """Simulate the lists of agents that only propose, then execute those of agents that act.

        Reports per agent, arrays [E]: replied, format_error, listed, moves (executed, blocked ones
        included), blocked, solved, and copied (the list equals one the agent was shown).
        """
        reports: dict[str, Report] = {}
        for agent in sorted(stage.agents, key=lambda agent: agent.acts):
            replies = chosen[agent.name]
            if len(replies) != len(state.last):
                raise ValueError(
                    f"agent {agent.name!r} has {len(replies)} replies for {len(state.last)} "
                    "environments: pass one (or None) per environment"
                )
            parses = [None if r is None else parse_moves(r, self.max_moves) for r in replies]
            take = self._act if agent.acts else self._propose
            state, reports[agent.name] = take(state, agent, parses)
        return state, reports

    def _moves(self, parses: Sequence[Parse | None]) -> np.ndarray:
        return _index([parse or Parse((), False) for parse in parses], self.max_moves)

    def _propose(
        self, state: GameState, agent: Agent, parses: list[Parse | None]
    ) -> tuple[GameState, Report]:
        tried = jax.device_get(self._simulate(state.boards, self._moves(parses)))
        proposals = []
        for e, (parse, old) in enumerate(zip(parses, state.proposals, strict=True)):
            if parse is None:
                proposals.append(old)
                continue
            moves = parse.moves if parse.ok else None
            note = Proposal(agent.name, moves, int(tried.blocked[e]), _one(tried.view, e))
            proposals.append((*old, note))
        report = self._report(state, agent, parses, tried)
        return replace(state, proposals=tuple(proposals)), report

    def _act(
        self, state: GameState, agent: Agent, parses: list[Parse | None]
    ) -> tuple[GameState, Report]:
        boards, device = self._advance(state.boards, self._moves(parses))
        tried = jax.device_get(device)
        last = list(state.last)
        for e, parse in enumerate(parses):
            if parse is not None:
                moves = parse.moves if parse.ok else None
                last[e] = Effect(moves, int(tried.blocked[e]), bool(tried.moved[e]), parse.error)
        report = self._report(state, agent, parses, tried)
        moves_E = (state.moves_E + report["moves"]).astype(np.int32)
        return GameState(boards, ((),) * len(last), tuple(last), moves_E), report

    def _report(
        self, state: GameState, agent: Agent, parses: list[Parse | None], tried: Tried
    ) -> Report:
        shown = [{p.moves for p in row if p.agent in agent.sees} for row in state.proposals]
        pairs = list(zip(parses, shown, strict=True))
        return {
            "replied": np.array([p is not None for p in parses], bool),
            "format_error": np.array([p is not None and not p.ok for p in parses], bool),
            "listed": np.array([len(p.moves) if p else 0 for p in parses], np.int32),
            "moves": np.asarray(tried.executed, np.int32),
            "blocked": np.asarray(tried.blocked, np.int32),
            "solved": np.asarray(tried.solved, bool),
            "copied": np.array([bool(p and p.ok and p.moves in s) for p, s in pairs], bool),
        }

    def status(self, state: GameState) -> Status:
        """Done: solved, lost for good, or a level that could not be made (never live)."""
        boards = state.boards
        success, over, valid = jax.device_get(
            (self._success(boards), self._terminated(boards), boards.valid)
        )
        return Status(over | ~valid, success & valid, state.moves_E.copy())

    def outcome(self, state: GameState) -> np.ndarray:
        """Whole-trajectory team return, float32 [E]."""
        return np.asarray(jax.device_get(self._outcome(state.boards)), np.float32)

    def board(self, state: GameState, e: int) -> dict[str, Any]:
        """JSON-able picture of environment e."""
        one = jax.tree.map(lambda leaf: leaf[e : e + 1], state.boards)
        rows = self.text.rows(_one(jax.device_get(self._view(one)), 0))
        return {"kind": self.game.name, "rows": rows, "legend": dict(self.text.SYMBOLS)}
