"""Parallel rollout: K independent trajectories an environment, one return each (plain GRPO).

The return of a trajectory is alpha times the team's outcome of the whole episode plus the mean of
the local rewards of its responses; with one agent and one turn that is the reward of Eq. 3. Its
group is the environment: all K trajectories, whatever their prompts became.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from atgrpo_jax.algorithms import advantages
from atgrpo_jax.config import RunConfig
from atgrpo_jax.policy import Policy
from atgrpo_jax.rewards import local
from atgrpo_jax.rng import keys
from atgrpo_jax.rollout import score
from atgrpo_jax.rollout.branch import Branches, ask, to_groups
from atgrpo_jax.rollout.record import Groups, Rollout, check_failures
from atgrpo_jax.rollout.statistics import Tally
from atgrpo_jax.rollout.tree import TRAINING
from atgrpo_jax.samplers.base import Sampler
from atgrpo_jax.workflows import Agent, Workflow
from environments.task import Task


def rollout(
    task: Task,
    workflow: Workflow,
    policies: dict[str, Policy],
    router: dict[str, str],
    sampler: Sampler,
    config: RunConfig,
    step: int,
) -> Rollout:
    """One step's trajectories, with the streams of the tree rollout.

    The first agents of the first turn answer one prompt an environment, so their record holds
    groups of K; later records hold one response a row. Raises RuntimeError when more than
    rollout.max_failure_rate of the scores failed.
    """
    settings = config.rollout
    count, branches = settings.environments, settings.branches
    ids = np.arange(count)
    start = task.reset(keys(config.seed, "level", TRAINING, step, ids), False)
    state = task.repeat(start, branches)
    lost = np.zeros(count * branches, bool)
    earned, spoken = np.zeros(count * branches), np.zeros(count * branches)
    records: dict[str, list[Groups]] = {agent.name: [] for agent in workflow.agents}
    tally = Tally(task, state, log=0)  # trajectories are no trees
    for turn in range(settings.turns):
        for stage in workflow.stages:
            live = np.flatnonzero(~task.status(state).done & ~lost)
            if not len(live):
                break
            together = turn == 0 and stage is workflow.stages[0]
            seconds = 0.0
            pending = {}
            for agent in stage.agents:
                began = time.perf_counter()
                asked = ask_all(
                    task,
                    workflow,
                    start if together else state,
                    agent,
                    turn,
                    ids if together else live,
                    together,
                    policies,
                    router,
                    sampler,
                    config,
                    step,
                )
                seconds += time.perf_counter() - began
                where = start if together else state
                size = count if together else count * branches
                pending[agent.name] = asked, score.begin(task, where, agent, asked, size)
            began = time.perf_counter()
            chosen: dict[str, list[str | None]] = {}
            for agent in stage.agents:
                asked, promise = pending[agent.name]
                result = score.finish(promise, asked, agent, config.reward)
                record = to_groups(
                    asked,
                    workflow.agents.index(agent),
                    turn,
                    result.member_BxK,
                    result.reward_BxK,
                    result.parts,
                    np.zeros(len(asked.prompts)),
                    np.zeros(result.reward_BxK.shape),
                )
                records[agent.name].append(record)
                rows = live if not together else np.arange(count * branches)
                lost[rows] |= ~result.member_BxK.reshape(-1)
                earned[rows] += local(result.parts, config.reward.weights[agent.name]).reshape(-1)
                spoken[rows] += 1
                chosen[agent.name] = spread(asked, rows, count * branches)
            state, reports = task.advance(state, chosen, stage, turn)
            tally.stage(turn, reports, seconds, time.perf_counter() - began)
    returns = (
        np.float32(config.reward.alpha) * task.outcome(state)
        + (earned / np.maximum(spoken, 1)).astype(np.float32)
    ).reshape(count, branches)
    values = advantages(returns, ~lost.reshape(count, branches), config.advantage, count)
    groups = {
        name: tuple(with_returns(record, returns, values, ~lost) for record in several)
        for name, several in records.items()
        if several
    }
    check_failures(groups, settings.max_failure_rate)
    return Rollout(groups, tally.summary(task, state, groups), tally.trees())


def ask_all(
    task: Task,
    workflow: Workflow,
    state: Any,
    agent: Agent,
    turn: int,
    rows: np.ndarray,
    together: bool,
    policies: dict[str, Policy],
    router: dict[str, str],
    sampler: Sampler,
    config: RunConfig,
    step: int,
) -> Branches:
    """One response a trajectory in `rows`; `together`: K responses an environment in `rows`."""
    settings, index = config.rollout, workflow.agents.index(agent)
    if together:
        environment, branch = rows[:, None], np.arange(settings.branches)[None]
    else:
        environment, branch = (part[:, None] for part in np.divmod(rows, settings.branches))
    branch_keys = keys(config.seed, "branch", step, environment, index, turn, branch)
    return ask(
        task,
        state,
        agent,
        turn,
        rows,
        policies[router[agent.name]],
        sampler,
        branch_keys,
        temperature=settings.temperature,
        max_new_tokens=settings.max_new_tokens,
    )


def spread(asked: Branches, rows: np.ndarray, count: int) -> list[str | None]:
    """The reply of each of `count` trajectories, None where it was not asked."""
    replies: list[str | None] = [None] * count
    flat = [reply for row in asked.replies for reply in row]
    for trajectory, reply in zip(rows, flat, strict=True):
        replies[trajectory] = reply
    return replies


def with_returns(
    record: Groups, returns_ExK: np.ndarray, values_ExK: np.ndarray, alive_N: np.ndarray
) -> Groups:
    """The record with each trajectory's return and advantage; lost trajectories drop out."""
    branches = returns_ExK.shape[1]
    if record.member_BxK.shape[1] == branches and branches > 1:
        trajectory = record.environment_B[:, None] * branches + np.arange(branches)
        environment_B = record.environment_B
    else:
        trajectory = record.environment_B[:, None]
        environment_B = (record.environment_B // branches).astype(np.int32)
    return replace(
        record,
        environment_B=environment_B,
        reward_BxK=returns_ExK.reshape(-1)[trajectory],
        advantage_BxK=values_ExK.reshape(-1)[trajectory],
        member_BxK=record.member_BxK & alive_N[trajectory],
    )
