"""From reward parts to one reward: r = alpha * team + sum_l c_l s_l (Eq. 3)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np


def check_weights(weights: Mapping[str, float], parts: Collection[str], role: str) -> None:
    """Raises ValueError for a weight of a part that the task does not have."""
    for name in weights:
        if name not in parts or name == "team":
            known = ", ".join(part for part in parts if part != "team")
            raise ValueError(f"reward.weights.{role}.{name} is no part of this task; use {known}")


def combine(
    parts: Mapping[str, np.ndarray], weights: Mapping[str, float], alpha: float
) -> np.ndarray:
    """Reward float32 [E, K] of parts [E, K] each; `team` is weighted by alpha (Eq. 3)."""
    reward = np.float32(alpha) * parts["team"]
    return (reward + local(parts, weights)).astype(np.float32)


def local(parts: Mapping[str, np.ndarray], weights: Mapping[str, float]) -> np.ndarray:
    """The role's own share of the reward, sum_l c_l s_l, float32 [E, K]."""
    total = np.zeros_like(parts["team"], dtype=np.float32)
    for name, weight in weights.items():
        total += np.float32(weight) * parts[name]
    return total
