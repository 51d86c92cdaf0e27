"""Algorithms as data: how branches are rolled out and what makes up an advantage group.

To add one: write its row here, and, if its rollout is neither mode below, a module beside
rollout/tree.py. CONTRIBUTING.md walks through it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np

from atgrpo_jax.advantages import group_advantages
from atgrpo_jax.rollout.record import Groups

if TYPE_CHECKING:
    from atgrpo_jax.config import AdvantageConfig, RunConfig


@dataclass(frozen=True)
class Algorithm:
    """`mode` is tree (branch every agent and turn) or parallel (K whole trajectories)."""

    name: str
    mode: str


ALGORITHMS = {
    "at_grpo": Algorithm("at_grpo", mode="tree"),
    "grpo": Algorithm("grpo", mode="parallel"),
}

MODES = tuple(dict.fromkeys(algorithm.mode for algorithm in ALGORITHMS.values()))


def mode_of(config: RunConfig) -> str:
    """How this run rolls out: as rollout.mode says, else as its algorithm does."""
    return config.rollout.mode or ALGORITHMS[config.algorithm].mode


def advantages(
    reward_BxK: np.ndarray, member_BxK: np.ndarray, settings: AdvantageConfig, most: int
) -> np.ndarray:
    """Group-relative advantages [B, K] (Eq. 1); padded to `most` groups, so it compiles once."""
    groups = reward_BxK.shape[0]
    padding = ((0, most - groups), (0, 0))
    values = group_advantages(
        np.pad(reward_BxK.astype(np.float32), padding),
        np.pad(member_BxK, padding),
        scale=settings.scale,
        leave_one_out=settings.leave_one_out,
        tolerance=settings.tolerance,
    )
    return np.array(jax.device_get(values))[:groups]


def has_contrast(groups: Groups) -> np.ndarray:
    """bool [B]: groups with any advantage; decided on whole groups, the others carry no signal."""
    return (groups.advantage_BxK != 0).any(-1)
