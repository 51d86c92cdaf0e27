"""The training loop: roll out, score, compute advantages, route, update, log."""

from __future__ import annotations

import time
from pathlib import Path

from jax.sharding import Mesh

from atgrpo_jax.algorithms import ALGORITHMS
from atgrpo_jax.checkpoint import Checkpoints
from atgrpo_jax.config import RunConfig, claim_workdir
from atgrpo_jax.evaluate import evaluate
from atgrpo_jax.mesh import make_mesh
from atgrpo_jax.metrics import Logger
from atgrpo_jax.models import hf
from atgrpo_jax.rewards import check_weights
from atgrpo_jax.rollout import parallel, tree
from atgrpo_jax.rollout.record import Rollout
from atgrpo_jax.samplers.base import Sampler
from atgrpo_jax.samplers.jax_sampler import JaxSampler
from atgrpo_jax.team import Team, build_team, learn, put_state, state_of
from atgrpo_jax.workflows import WORKFLOWS, Workflow
from environments.registry import make_task
from environments.task import Task

ROLLOUTS = {"tree": tree.rollout, "parallel": parallel.rollout}


def run(config: RunConfig, workdir: str) -> None:
    """Trains to `config.steps`, going on where `workdir` stopped. Step s evaluates, then learns.

    Raises ConfigError for a workdir of another config, ValueError for settings that do not fit,
    RuntimeError when too many scores fail.
    """
    workflow = WORKFLOWS[config.workflow]
    roll_out = ROLLOUTS[config.rollout.mode or ALGORITHMS[config.algorithm].mode]
    mesh = make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    task = make_task(config.environment)
    for agent in workflow.agents:
        check_weights(config.reward.weights[agent.name], task.parts, agent.name)
    team = build_team(config, workflow, mesh)
    sampler = JaxSampler()
    claim_workdir(workdir, config)
    with Checkpoints(workdir, config.checkpoint.keep) as checkpoints:
        restored = checkpoints.restore_latest(state_of(team))
        start = 0
        if restored is not None:
            start = restored[0]
            put_state(team, restored[1])
            print(
                f"resuming at step {start} of {config.steps}"
                if start <= config.steps
                else f"nothing left to do: {workdir} holds all {config.steps} steps"
            )
        with Logger(workdir, start, config.steps) as logger:
            for step in range(start, config.steps + 1):
                metrics: dict[str, float] = {}
                if evaluates(step, config):
                    metrics |= evaluate_team(team, task, workflow, sampler, config, step)
                if step < config.steps:
                    began = time.perf_counter()
                    rollout = roll_out(
                        task, workflow, team.policies, team.router, sampler, config, step
                    )
                    metrics |= rollout.statistics
                    metrics |= update_team(team, rollout, config, mesh)
                    metrics["seconds/step"] = time.perf_counter() - began
                    logger.trees(step, rollout.trees)
                logger.log(step, metrics)
                if saves(step, config):
                    checkpoints.save(step + 1, state_of(team), metrics.get("evaluate/success"))
    export(team, config, workdir)


def evaluates(step: int, config: RunConfig) -> bool:
    """Held-out evaluation before step 0, every `evaluate.every` steps, and at the end."""
    every = config.evaluate.every
    return step in (0, config.steps) or (every > 0 and step % every == 0)


def saves(step: int, config: RunConfig) -> bool:
    """Checkpoints after every `checkpoint.every` steps and at the end."""
    every = config.checkpoint.every
    return step == config.steps or (every > 0 and (step + 1) % every == 0)


def evaluate_team(
    team: Team, task: Task, workflow: Workflow, sampler: Sampler, config: RunConfig, step: int
) -> dict[str, float]:
    """The held-out metrics of this step; more episodes at the start and the end.

    There also the greedy success: the other half of what a policy can do.
    """
    settings = config.evaluate
    ends = step in (0, config.steps)
    episodes = settings.final_episodes if ends else settings.episodes
    began = time.perf_counter()

    def held_out(temperature: float) -> dict[str, float]:
        return evaluate(
            task,
            workflow,
            team.policies,
            team.router,
            sampler,
            config,
            episodes=episodes,
            temperature=temperature,
        )

    metrics = held_out(settings.temperature)
    if ends and settings.temperature > 0:
        metrics["evaluate/success_greedy"] = held_out(0.0)["evaluate/success"]
    return metrics | {"seconds/evaluate": time.perf_counter() - began}


def update_team(team: Team, rollout: Rollout, config: RunConfig, mesh: Mesh) -> dict[str, float]:
    """Routes every agent's groups to its policy and updates each policy once."""
    metrics: dict[str, float] = {}
    began = time.perf_counter()
    for name, policy in team.policies.items():
        records = [
            record
            for agent, to in team.router.items()
            if to == name
            for record in rollout.groups.get(agent, ())
        ]
        if records:
            values = learn(team, policy, records, config, mesh)
            metrics |= {f"update/{name}/{key}": value for key, value in values.items()}
    return metrics | {"seconds/update": time.perf_counter() - began}


def export(team: Team, config: RunConfig, workdir: str) -> None:
    """Writes every policy as a Hugging Face directory under policies/NAME."""
    for name, policy in team.policies.items():
        hf.save(Path(workdir) / "policies" / name, policy.config, policy.params, config.model.path)
