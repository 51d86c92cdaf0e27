"""Tree rollout: branch K candidates from one state, score them all, advance one."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from atgrpo_jax.algorithms import advantages
from atgrpo_jax.config import RolloutConfig, RunConfig
from atgrpo_jax.policy import Policy
from atgrpo_jax.rng import keys
from atgrpo_jax.rollout import score
from atgrpo_jax.rollout.branch import Branches, ask, to_groups
from atgrpo_jax.rollout.record import Groups, Rollout, check_failures, check_keys, concatenate
from atgrpo_jax.rollout.statistics import Tally
from atgrpo_jax.samplers.base import Sampler
from atgrpo_jax.workflows import Agent, Stage, Workflow
from environments.task import Task

TRAINING, HELDOUT = 0, 1  # first counter of the level stream
TIE = 1e-6  # rewards this close are a tie


def rollout(
    task: Task,
    workflow: Workflow,
    policies: dict[str, Policy],
    router: dict[str, str],
    sampler: Sampler,
    config: RunConfig,
    step: int,
) -> Rollout:
    """One step's groups, keyed (environment, agent, turn). Raises RuntimeError when more than
    rollout.max_failure_rate of the scores failed."""
    settings = config.rollout
    ids = np.arange(settings.environments)
    state = task.reset(keys(config.seed, "level", TRAINING, step, ids), False)
    lost = np.zeros(settings.environments, bool)  # no candidate could be scored
    records: dict[str, list[Groups]] = {agent.name: [] for agent in workflow.agents}
    tally = Tally(task, state, log=config.log.trees if is_logged(config, step) else 0)
    for turn in range(settings.turns):
        for stage in workflow.stages:
            live = np.flatnonzero(~task.status(state).done & ~lost)
            if not len(live):
                break
            began = time.perf_counter()
            branches = {
                agent.name: branch(
                    task,
                    workflow,
                    state,
                    agent,
                    turn,
                    live,
                    policies,
                    router,
                    sampler,
                    config,
                    step,
                )
                for agent in stage.agents
            }
            sampled = time.perf_counter()
            scored = score_stage(task, state, stage, branches, config)
            chosen: dict[str, list[str | None]] = {}
            for agent in stage.agents:
                index = workflow.agents.index(agent)
                result, options = scored[agent.name], branches[agent.name]
                picked = choose(
                    result.reward_BxK,
                    result.member_BxK,
                    settings,
                    (config.seed, step, live, index, turn),
                )
                record = to_groups(
                    options,
                    index,
                    turn,
                    result.member_BxK,
                    result.reward_BxK,
                    result.parts,
                    picked,
                    advantages(
                        result.reward_BxK,
                        result.member_BxK,
                        config.advantage,
                        settings.environments,
                    ),
                )
                records[agent.name].append(record)
                chosen[agent.name] = replies_of(options, picked, settings.environments)
                lost[live[picked < 0]] = True
                tally.node(state, agent, options, record)
            state, reports = task.advance(state, chosen, stage, turn)
            tally.stage(turn, reports, sampled - began, time.perf_counter() - sampled)
    groups: dict[str, tuple[Groups, ...]] = {
        name: (concatenate(several),) for name, several in records.items() if several
    }
    for several in groups.values():
        check_keys(several[0])
    check_failures(groups, settings.max_failure_rate)
    return Rollout(groups, tally.summary(task, state, groups), tally.trees())


def is_logged(config: RunConfig, step: int) -> bool:
    """Whether this step's trees are written."""
    return config.log.trees_every > 0 and step % config.log.trees_every == 0


def branch(
    task: Task,
    workflow: Workflow,
    state: Any,
    agent: Agent,
    turn: int,
    live: np.ndarray,
    policies: dict[str, Policy],
    router: dict[str, str],
    sampler: Sampler,
    config: RunConfig,
    step: int,
) -> Branches:
    """K responses to one prompt in every live environment."""
    settings, index = config.rollout, workflow.agents.index(agent)
    branch_keys = keys(
        config.seed, "branch", step, live[:, None], index, turn, np.arange(settings.branches)
    )
    return ask(
        task,
        state,
        agent,
        turn,
        live,
        policies[router[agent.name]],
        sampler,
        branch_keys,
        temperature=settings.temperature,
        max_new_tokens=settings.max_new_tokens,
    )


def score_stage(
    task: Task, state: Any, stage: Stage, branches: dict[str, Branches], config: RunConfig
) -> dict[str, score.Scored]:
    """Scores all candidates of all agents of a stage from the same, unmoved state."""
    count = config.rollout.environments
    pending = {
        agent.name: score.begin(task, state, agent, branches[agent.name], count)
        for agent in stage.agents
    }
    return {
        agent.name: score.finish(pending[agent.name], branches[agent.name], agent, config.reward)
        for agent in stage.agents
    }


def choose(
    reward_BxK: np.ndarray,
    member_BxK: np.ndarray,
    settings: RolloutConfig,
    counters: tuple[int, int, np.ndarray, int, int],
) -> np.ndarray:
    """Branch [B] that advances each state, -1 where no candidate counts.

    counters: run seed, step, environments [B], agent, turn; they alone decide ties and draws.
    """
    seed, step, environments, agent, turn = counters
    count, branches = reward_BxK.shape
    draws = keys(seed, "advance", step, environments[:, None], agent, turn, np.arange(branches + 1))
    uniform = draws[..., 0] / 2.0**32
    lottery, coin_B = np.where(member_BxK, uniform[:, :-1], -1.0), uniform[:, -1]
    best_B = np.where(member_BxK, reward_BxK, -np.inf).max(-1, keepdims=True)
    tied = member_BxK & (reward_BxK >= best_B - TIE)
    drawn_B = lottery.argmax(-1)
    picked_B = {
        "greedy": np.where(tied, lottery, -1.0).argmax(-1),
        "sampled": drawn_B,
        "first": member_BxK.argmax(-1),
    }[settings.advance]
    picked_B = np.where(coin_B < settings.random_advance, drawn_B, picked_B)
    return np.where(member_BxK.any(-1), picked_B, -1)


def replies_of(branches: Branches, picked_B: np.ndarray, count: int) -> list[str | None]:
    """The chosen reply of each of `count` environments, None where there is none."""
    replies: list[str | None] = [None] * count
    for e, row, k in zip(branches.environment_B, branches.replies, picked_B, strict=True):
        if k >= 0:
            replies[e] = row[k]
    return replies
