"""Held-out evaluation: how often a team solves boards it has never been trained on."""

from __future__ import annotations

import math

import numpy as np

from atgrpo_jax.config import RunConfig
from atgrpo_jax.policy import Policy
from atgrpo_jax.rollout.play import Played, play
from atgrpo_jax.samplers.base import Sampler
from atgrpo_jax.workflows import Workflow
from environments.task import Task

CHUNK = 256  # most boards played at once


def evaluate(
    task: Task,
    workflow: Workflow,
    policies: dict[str, Policy],
    router: dict[str, str],
    sampler: Sampler,
    config: RunConfig,
    *,
    episodes: int,
    temperature: float,
    seed: int = 0,
) -> dict[str, float]:
    """Metrics of `episodes` held-out boards, one response an agent and turn.

    The boards depend on `seed` alone, so every evaluation of every run plays the same ones.
    """
    # One batch shape for all evaluations of a run: the last chunk is filled up, not recompiled.
    size = min(CHUNK, max(episodes, config.evaluate.episodes, config.evaluate.final_episodes))
    chunks = []
    for first in range(0, episodes, size):
        wanted = min(size, episodes - first)
        played = play(
            task,
            workflow,
            policies,
            router,
            sampler,
            np.arange(first, first + size),
            seed=seed,
            heldout=True,
            turns=config.rollout.turns,
            temperature=temperature,
            max_new_tokens=config.rollout.max_new_tokens,
        )
        chunks.append((played, wanted))
    return summarise(chunks)


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson score interval of a proportion, 95 % by default; within [0, 1]."""
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max((centre - spread) / scale, 0.0), min((centre + spread) / scale, 1.0)


def summarise(chunks: list[tuple[Played, int]]) -> dict[str, float]:
    """Metrics of the first `wanted` episodes of each chunk; docs/metrics.md defines each name."""
    success = np.concatenate([played.success_E[:wanted] for played, wanted in chunks])
    low, high = wilson(int(success.sum()), len(success))
    metrics = {
        "evaluate/success": float(success.mean()),
        "evaluate/success_low": low,
        "evaluate/success_high": high,
        "evaluate/episodes": float(len(success)),
        "evaluate/turns": mean_of(chunks, "turns_E"),
        "evaluate/moves": mean_of(chunks, "moves_E"),
    }
    for agent in chunks[0][0].reports:
        for name in ("format_error", "copied", "blocked", "listed"):
            value = reply_mean(chunks, agent, name)
            if value is not None:
                metrics[f"evaluate/{agent}/{name}"] = value
    repair = repair_rate(chunks)
    return metrics if repair is None else metrics | {"evaluate/repair": repair}


def mean_of(chunks: list[tuple[Played, int]], name: str) -> float:
    """Mean over episodes of one of Played's arrays."""
    return float(np.concatenate([getattr(played, name)[:n] for played, n in chunks]).mean())


def reply_mean(chunks: list[tuple[Played, int]], agent: str, name: str) -> float | None:
    """Mean over this agent's replies of one number of its reports; None if it has no such."""
    total, replies = 0.0, 0
    for played, wanted in chunks:
        for report in played.reports[agent]:
            if name not in report:
                return None
            replied = report["replied"][:wanted]
            total += float(report[name][:wanted][replied].sum())
            replies += int(replied.sum())
    return total / max(replies, 1)


def repair_rate(chunks: list[tuple[Played, int]]) -> float | None:
    """Of the turns whose proposal would not have solved the board, the share that the acting
    agent solved all the same; None for a workflow without a proposing agent before an acting one.
    """
    names = list(chunks[0][0].reports)
    if len(names) != 2:
        return None
    repaired = failed = 0
    for played, wanted in chunks:
        pairs = zip(played.reports[names[0]], played.reports[names[1]], strict=False)
        for proposal, action in pairs:
            if "solved" not in proposal or "solved" not in action:
                return None
            missed = (proposal["replied"] & ~proposal["solved"])[:wanted]
            failed += int(missed.sum())
            repaired += int((missed & action["solved"][:wanted]).sum())
    return repaired / max(failed, 1)
