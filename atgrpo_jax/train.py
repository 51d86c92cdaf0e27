"""The training loop: roll out, score, compute advantages, route, update, log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from atgrpo_jax.algorithms import mode_of
from atgrpo_jax.checkpoint import Checkpoints
from atgrpo_jax.config import RunConfig, claim_workdir
from atgrpo_jax.evaluate import evaluate
from atgrpo_jax.files import owned, read_lines
from atgrpo_jax.mesh import make_mesh
from atgrpo_jax.metrics import Logger
from atgrpo_jax.models import hf
from atgrpo_jax.rewards import check_weights
from atgrpo_jax.rollout import parallel, tree
from atgrpo_jax.rollout.record import Rollout
from atgrpo_jax.samplers.base import Sampler
from atgrpo_jax.samplers.registry import make_sampler
from atgrpo_jax.team import Team, build_team, learn, put_state, routed, state_of
from atgrpo_jax.workflows import WORKFLOWS, Workflow
from environments.registry import make_task
from environments.task import Task

ROLLOUTS = {"tree": tree.rollout, "parallel": parallel.rollout}


def run(config: RunConfig, workdir: str) -> None:
    """Trains to `config.steps`, going on where `workdir` stopped.

    Step s evaluates, saves and then learns, so a checkpoint holds the weights that were scored.
    Raises ConfigError for a workdir of another config, ValueError for settings that do not fit,
    RuntimeError when too many scores fail, OSError when another process trains in `workdir`.
    """
    workflow = WORKFLOWS[config.workflow]
    roll_out = ROLLOUTS[mode_of(config)]
    task = make_task(config.environment)
    for agent in workflow.agents:
        check_weights(config.reward.weights[agent.name], task.parts, agent.name)
    mesh = make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    team = build_team(config, workflow, mesh)
    sampler = make_sampler(config, mesh)
    claim_workdir(workdir, config)
    with owned(Path(workdir)), Checkpoints(workdir, config.checkpoint.keep) as checkpoints:
        step, tokens = resume(checkpoints, team, workdir, config)
        if is_over(step, tokens, config) and exported(team, workdir):
            print(f"nothing left to do: {workdir} is trained")
            return
        print("compiling first, which takes a minute or two; later steps do not", flush=True)
        with Logger(workdir, step, config.steps) as logger:
            while True:
                over = is_over(step, tokens, config)
                metrics: dict[str, float] = {"tokens/sampled": float(tokens)}
                if evaluates(step, over, config):
                    metrics |= evaluate_team(team, task, workflow, sampler, config, step, over)
                if saves(step, over, config):
                    score = metrics.get("evaluate/success")
                    checkpoints.save(step, state_of(team, tokens), score)
                if over:
                    break
                began = time.perf_counter()
                rollout = roll_out(
                    task, workflow, team.policies, team.router, sampler, config, step
                )
                metrics |= rollout.statistics
                metrics |= update_team(team, rollout, config, workflow)
                metrics["seconds/step"] = time.perf_counter() - began
                logger.trees(step, rollout.trees)
                logger.log(step, metrics)
                step, tokens = step + 1, tokens + int(metrics["rollout/tokens"])
            logger.log(step, metrics)
    export(team, config, workdir)
    print(report(workdir))


def resume(
    checkpoints: Checkpoints, team: Team, workdir: str, config: RunConfig
) -> tuple[int, int]:
    """Puts the newest checkpoint into `team`; returns its step and the tokens sampled so far."""
    restored = checkpoints.restore_latest(state_of(team))
    if restored is None:
        print(f"training in {workdir} to step {config.steps}; started again, it goes on")
        return 0, 0
    step, state = restored
    tokens = put_state(team, state)
    print(f"resuming {workdir} at step {step} of {config.steps}")
    return step, tokens


def is_over(step: int, tokens: int, config: RunConfig) -> bool:
    """Whether `step` is the last: it evaluates and does not learn."""
    return step >= config.steps or 0 < config.sampled_tokens <= tokens


def evaluates(step: int, over: bool, config: RunConfig) -> bool:
    """Held-out evaluation before step 0, every `evaluate.every` steps, and at the end."""
    every = config.evaluate.every
    return step == 0 or over or (every > 0 and step % every == 0)


def saves(step: int, over: bool, config: RunConfig) -> bool:
    """A checkpoint at the start, every `checkpoint.every` steps and at the end; 0: at the end."""
    every = config.checkpoint.every
    return over or (every > 0 and step % every == 0)


def evaluate_team(
    team: Team,
    task: Task,
    workflow: Workflow,
    sampler: Sampler,
    config: RunConfig,
    step: int,
    over: bool,
) -> dict[str, float]:
    """The held-out metrics of this step; more episodes at the start and the end.

    There also the greedy success: the other half of what a policy can do.
    """
    settings = config.evaluate
    ends = step == 0 or over
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


def update_team(
    team: Team, rollout: Rollout, config: RunConfig, workflow: Workflow
) -> dict[str, float]:
    """Routes every agent's groups to its policy and updates each policy once."""
    metrics: dict[str, float] = {}
    began = time.perf_counter()
    for name, policy in team.policies.items():
        records = routed(team, rollout, name)
        if records:
            values = learn(team, policy, records, config, workflow)
            metrics |= {f"update/{name}/{key}": value for key, value in values.items()}
    return metrics | {"seconds/update": time.perf_counter() - began}


def exported(team: Team, workdir: str) -> bool:
    """Whether the run has ended: exporting is the last that it does."""
    return all((Path(workdir) / "policies" / name).is_dir() for name in team.policies)


def export(team: Team, config: RunConfig, workdir: str) -> None:
    """Writes every policy as a Hugging Face directory under policies/NAME."""
    for name, policy in team.policies.items():
        hf.save(Path(workdir) / "policies" / name, policy.config, policy.params, config.model.path)


def report(workdir: str) -> str:
    """What the run came to, and where to look next."""
    rows = read_lines(Path(workdir) / "metrics.jsonl")
    first, last = rows[0], rows[-1]

    def shown(row: dict[str, Any]) -> str:
        text = (
            f"{row['evaluate/success']:.3f} "
            f"({row['evaluate/success_low']:.3f} to {row['evaluate/success_high']:.3f})"
        )
        greedy = row.get("evaluate/success_greedy")
        return text if greedy is None else f"{text}, greedy {greedy:.3f}"

    lines = [
        f"held-out success on {last['evaluate/episodes']:.0f} boards (95 % interval)",
        f"  before  {shown(first)}",
        f"  after   {shown(last)}",
        "look at it",
        f"  python launch/view.py --workdir={workdir}      writes {workdir}/view.html",
        f"  tensorboard --logdir={workdir}/tensorboard",
        f"  python launch/evaluate.py --workdir={workdir}",
    ]
    return "\n".join(lines)
