"""Scoring: reward parts of every candidate, before the state moves."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from atgrpo_jax.config import RewardConfig
from atgrpo_jax.rewards import combine
from atgrpo_jax.rollout.branch import Branches
from atgrpo_jax.samplers.base import ABORT
from atgrpo_jax.workflows import Agent
from environments.task import Scores, Task


@dataclass(frozen=True)
class Scored:
    """Of B groups of K candidates: who counts, the whole reward (Eq. 3) and its parts."""

    member_BxK: np.ndarray
    reward_BxK: np.ndarray
    parts: dict[str, np.ndarray]


def begin(task: Task, state: Any, agent: Agent, branches: Branches, count: int) -> Any:
    """Starts scoring in `count` environments; the answer is Scores or a Future of them."""
    replies: list[list[str]] = [[] for _ in range(count)]
    live = np.zeros(count, bool)
    for e, row in zip(branches.environment_B, branches.replies, strict=True):
        replies[e] = row
        live[e] = True
    return task.score(state, agent, replies, live)


def finish(
    pending: Scores | Future[Scores], branches: Branches, agent: Agent, reward: RewardConfig
) -> Scored:
    """Waits for the scores and combines their parts.

    A candidate counts if its response was not aborted, its score did not fail, and every part of
    it is a finite number in [-1, 1]; nothing else ever becomes a reward.
    """
    scores = pending.result() if isinstance(pending, Future) else pending
    index = branches.environment_B
    parts = {name: part[index] for name, part in scores.parts.items()}
    sound = np.all([np.abs(part) <= 1.0 + 1e-6 for part in parts.values()], axis=0)
    member = scores.valid[index] & sound & (branches.samples.finish_BxK != ABORT)
    parts = {name: np.where(member, part, 0.0) for name, part in parts.items()}
    return Scored(member, combine(parts, reward.weights[agent.name], reward.alpha), parts)
