"""The border between training and an environment: what a rollout asks of a task."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from atgrpo_jax.workflows import Agent, Stage

Message = dict[str, str]  # {"role": "system" | "user", "content": text}
Report = dict[str, np.ndarray]  # one number per environment


@dataclass(frozen=True)
class Scores:
    """Reward parts of E x K replies.

    parts: name -> float32 [E, K], each in [-1, 1]. valid: bool [E, K]; False is a failure of the
    infrastructure, which is never turned into a reward.
    """

    parts: dict[str, np.ndarray]
    valid: np.ndarray

    def __post_init__(self) -> None:
        for name, part in self.parts.items():
            if part.shape != self.valid.shape:
                raise ValueError(
                    f"reward part {name!r} has shape {part.shape}, valid {self.valid.shape}: "
                    "return [E, K] for both"
                )


@dataclass(frozen=True)
class Status:
    """Where E environments stand. done, success: bool [E]; moves: int32 [E] executed so far."""

    done: np.ndarray
    success: np.ndarray
    moves: np.ndarray


class Task(Protocol):
    """A batch of E environments. States are opaque and immutable: every call may be repeated."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of all reward parts, "team" among them."""
        ...

    def reset(self, keys_Ex2: np.ndarray, heldout: bool) -> Any:
        """State of E fresh levels of one split; keys are raw uint32 threefry keys."""
        ...

    def repeat(self, state: Any, K: int) -> Any:
        """Every environment K times, environment-major: E*K environments."""
        ...

    def observe(self, state: Any, agent: Agent, turn: int) -> list[list[Message]]:
        """Chat messages for this agent, one conversation per environment."""
        ...

    def score(
        self, state: Any, agent: Agent, replies: Sequence[Sequence[str]], live_E: np.ndarray
    ) -> Scores | Future[Scores]:
        """Reward parts of E x K replies, each tried from the same state; nothing moves.

        Environments that are not live may pass [] and get zeros.
        """
        ...

    def advance(
        self, state: Any, chosen: Mapping[str, Sequence[str | None]], stage: Stage, turn: int
    ) -> tuple[Any, dict[str, Report]]:
        """The state after one stage, and a report per agent of the stage.

        chosen: per agent one reply per environment; None means nothing happens there.
        """
        ...

    def status(self, state: Any) -> Status:
        """Done, success and executed moves."""
        ...

    def outcome(self, state: Any) -> np.ndarray:
        """Whole-trajectory team return, float32 [E] in [0, 1]."""
        ...

    def board(self, state: Any, e: int) -> dict[str, Any]:
        """JSON-able picture of environment e: {"kind", "rows", "legend"}."""
        ...
