"""Sokoban's records."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from flax import struct


@dataclass(frozen=True)
class SokobanConfig:
    """size: cells a side, the outer wall included. wall_rate: chance of a wall for an inner cell.

    reverse_steps: moves of the reverse play. attempts: draws before giving up. Raises ValueError
    for a board without room.
    """

    size: int = 6
    boxes: int = 1
    wall_rate: float = 0.15
    reverse_steps: int = 100
    attempts: int = 1000

    def __post_init__(self) -> None:
        if not 5 <= self.size <= 10:
            raise ValueError(f"environment.size={self.size} for sokoban: use 5 to 10")
        if not 1 <= self.boxes <= 4:
            raise ValueError(f"environment.boxes={self.boxes} for sokoban: use 1 to 4")
        if not 0.0 <= self.wall_rate <= 0.5:
            raise ValueError(f"environment.wall_rate={self.wall_rate} for sokoban: use 0 to 0.5")
        room = (self.size - 2) ** 2 * (1.0 - self.wall_rate)
        if room < 3 * self.boxes + 1:
            raise ValueError(
                f"environment.size={self.size} with wall_rate={self.wall_rate} has no room for "
                f"environment.boxes={self.boxes}: use a larger board or fewer boxes"
            )


@struct.dataclass
class Level:
    """What never changes in an episode."""

    walls: jax.Array  # bool [H, W]
    goals: jax.Array  # bool [H, W]
    table: jax.Array  # int16 [box sets, inner cells]: moves to solve, -1 where impossible
    start_distance: jax.Array  # int32


@struct.dataclass
class State:
    """One environment."""

    level: Level
    boxes: jax.Array  # bool [H, W]
    agent: jax.Array  # int32 [2]
    valid: jax.Array  # bool: False only if every attempt to draw a board failed


@struct.dataclass
class Trace:
    """What became of an action list: moves listed, executed (blocked ones included), blocked."""

    listed: jax.Array
    executed: jax.Array
    blocked: jax.Array
