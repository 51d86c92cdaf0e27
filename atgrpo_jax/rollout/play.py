"""Plain play: one response an agent and turn, no reward looked at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atgrpo_jax.policy import Policy
from atgrpo_jax.rng import keys
from atgrpo_jax.rollout.branch import ask
from atgrpo_jax.rollout.tree import HELDOUT, TRAINING
from atgrpo_jax.samplers.base import Sampler
from atgrpo_jax.workflows import Workflow
from environments.task import Report, Task


@dataclass(frozen=True)
class Played:
    """E finished episodes; reports[agent] holds one report per turn, rows of it masked by
    `replied`."""

    success_E: np.ndarray
    turns_E: np.ndarray
    moves_E: np.ndarray
    reports: dict[str, list[Report]]
    tokens: int


def play(
    task: Task,
    workflow: Workflow,
    policies: dict[str, Policy],
    router: dict[str, str],
    sampler: Sampler,
    ids_E: np.ndarray,
    *,
    seed: int,
    heldout: bool,
    turns: int,
    temperature: float,
    max_new_tokens: int,
) -> Played:
    """Plays the boards numbered `ids_E` of one split; the same seed gives the same games."""
    count = len(ids_E)
    split = HELDOUT if heldout else TRAINING
    state = task.reset(keys(seed, "evaluate-level", split, ids_E), heldout)
    turns_E = np.zeros(count, np.int32)
    reports: dict[str, list[Report]] = {agent.name: [] for agent in workflow.agents}
    tokens = 0
    for turn in range(turns):
        for stage in workflow.stages:
            live = np.flatnonzero(~task.status(state).done)
            if not len(live):
                break
            chosen: dict[str, list[str | None]] = {}
            for agent in stage.agents:
                index = workflow.agents.index(agent)
                reply_keys = keys(seed, "evaluate", ids_E[live], index, turn)[:, None]
                asked = ask(
                    task,
                    state,
                    agent,
                    turn,
                    live,
                    policies[router[agent.name]],
                    sampler,
                    reply_keys,
                    temperature=temperature,
                    max_new_tokens=max_new_tokens,
                )
                tokens += int(asked.samples.mask_BxKxR.sum())
                chosen[agent.name] = [None] * count
                for e, row in zip(live, asked.replies, strict=True):
                    chosen[agent.name][e] = row[0]
            state, stage_reports = task.advance(state, chosen, stage, turn)
            for name, report in stage_reports.items():
                reports[name].append(report)
            turns_E[live] = turn + 1
    status = task.status(state)
    return Played(status.success, turns_E, status.moves, reports, tokens)
