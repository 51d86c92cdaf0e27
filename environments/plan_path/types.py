"""Plan-Path's records."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from flax import struct


@dataclass(frozen=True)
class PlanPathConfig:
    """size: cells a side. wall_rate: share of obstacles. attempts: draws before giving up."""

    size: int = 10
    wall_rate: float = 0.22
    attempts: int = 1000

    def __post_init__(self) -> None:
        if not 2 <= self.size <= 10:
            raise ValueError(f"environment.size={self.size} for plan_path: use 2 to 10")
        if not 0.0 <= self.wall_rate <= 0.6:
            raise ValueError(
                f"environment.wall_rate={self.wall_rate} for plan_path: use 0 to 0.6, "
                "so that a board has room for a path"
            )


@struct.dataclass
class Level:
    """What never changes in an episode."""

    walls: jax.Array  # bool [H, W]
    goal: jax.Array  # int32 [2]
    distance: jax.Array  # int32 [H, W]: moves to the goal, -1 where it cannot be reached
    start_distance: jax.Array  # int32


@struct.dataclass
class State:
    """One environment; `best` is the smallest distance reached so far in the episode."""

    level: Level
    agent: jax.Array  # int32 [2]
    best: jax.Array  # int32
    valid: jax.Array  # bool: False only if every attempt to draw a board failed


@struct.dataclass
class Trace:
    """What became of an action list: counts, and whether its first move was on a shortest path."""

    listed: jax.Array
    executed: jax.Array
    blocked: jax.Array
    first_is_shortest: jax.Array
