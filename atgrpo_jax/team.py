"""The policies of a run, their optimizers, and one learning step of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from atgrpo_jax.algorithms import has_contrast, mode_of
from atgrpo_jax.config import RunConfig
from atgrpo_jax.loss import LossSettings
from atgrpo_jax.mesh import place_rows, row_shards, shardings
from atgrpo_jax.models import chat, hf
from atgrpo_jax.optimizer import learning_rate_schedule, make_optimizer, state_shardings
from atgrpo_jax.policy import Policy, real_copy, route
from atgrpo_jax.rng import keys
from atgrpo_jax.rollout.record import Groups, Rollout, concatenate, join_prompts, select, singles
from atgrpo_jax.update import Batch, make_update, pack, score, split_micro
from atgrpo_jax.workflows import Workflow


@dataclass(frozen=True)
class Team:
    """All policies by name, the router (agent -> policy name) and the shared update step."""

    policies: dict[str, Policy]
    router: dict[str, str]
    rooms: dict[str, int]  # policy name -> most rows of one optimiser step
    mesh: Mesh
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    update: Callable[..., tuple[Any, Any, dict[str, jax.Array]]]


def optimiser_steps_per_rollout(config: RunConfig) -> int:
    """Optimiser steps that one rollout feeds: epochs x minibatches."""
    return config.update.epochs * config.update.minibatches


def build_team(config: RunConfig, workflow: Workflow, mesh: Mesh) -> Team:
    """Loads the starting policy once for every policy of the router; nothing is shared."""
    if config.update.micro_batch % row_shards(mesh):
        raise ValueError(
            f"config.update.micro_batch={config.update.micro_batch} rows cannot be spread over "
            f"{row_shards(mesh)} devices; use a multiple of {row_shards(mesh)}"
        )
    router = route(config.policies, workflow)
    language = chat.load_chat(config.model.path, thinking=config.model.thinking)
    schedule = learning_rate_schedule(
        config.update, config.steps * optimiser_steps_per_rollout(config)
    )
    optimizer = make_optimizer(config.update, schedule)
    policies = {}
    for name in dict.fromkeys(router.values()):
        model_config, params = hf.load(
            config.model.path,
            mesh,
            config.model.param_dtype,
            compute_dtype=config.model.compute_dtype,
            remat=config.model.remat,
            scan=config.model.scan,
        )
        opt_shardings = state_shardings(mesh, optimizer, params)
        policies[name] = Policy(
            name=name,
            config=model_config,
            chat=language,
            params=params,
            opt_state=jax.device_put(optimizer.init(params), opt_shardings),
            reference=real_copy(params) if config.update.kl > 0 else None,
        )
    update = make_update(
        model_config,
        optimizer,
        loss_settings(config),
        fresh=optimiser_steps_per_rollout(config) == 1,
        placed=(shardings(mesh, params), opt_shardings),
    )
    rooms = {
        name: most_rows(config, workflow, list(router.values()).count(name)) for name in policies
    }
    return Team(policies, router, rooms, mesh, optimizer, schedule, update)


def keeps_groups(config: RunConfig, workflow: Workflow) -> bool:
    """Whether the responses of a group answer one prompt: always but in parallel mode, there only
    where nothing has happened before them. Others are joined by prompt, row by row."""
    if mode_of(config) != "parallel":
        return True
    return config.rollout.turns == 1 and len(workflow.stages) == 1


def most_rows(config: RunConfig, workflow: Workflow, agents: int) -> int:
    """Rows of the largest possible optimiser step of a policy with `agents` agents."""
    rollout, update = config.rollout, config.update
    rows = rollout.environments * rollout.turns * agents
    if not keeps_groups(config, workflow):
        rows *= rollout.branches
    elif not update.share_prompt:
        rows *= update.keep or rollout.branches
    return -(-rows // update.minibatches)


def loss_settings(config: RunConfig) -> LossSettings:
    """The terms of the loss out of the run's config."""
    update = config.update
    return LossSettings(
        clip_low=update.clip_low,
        clip_high=update.clip_high,
        entropy=update.entropy,
        kl=update.kl,
        aggregation=update.aggregation,
        constant_length=config.rollout.max_new_tokens,
    )


def routed(team: Team, rollout: Rollout, name: str) -> list[Groups]:
    """Records of all agents that policy `name` plays."""
    return [
        record
        for agent, to in team.router.items()
        if to == name
        for record in rollout.groups.get(agent, ())
    ]


def learn(
    team: Team, policy: Policy, records: Sequence[Groups], config: RunConfig, workflow: Workflow
) -> dict[str, float]:
    """Updates `policy` on its groups; returns metrics. No group with contrast: no update.

    The policy's version and schedule advance only with an optimiser step that happened.
    """
    if keeps_groups(config, workflow):
        groups = concatenate(records)
    else:
        apart = concatenate([singles(record) for record in records])
        groups = join_prompts(apart, config.rollout.branches)
    kept = select(groups, np.flatnonzero(has_contrast(groups)))
    count = len(kept.environment_B)
    metrics: dict[str, Any] = {"groups": len(groups.environment_B), "groups_kept": count}
    if count == 0:
        return metrics | {"optimiser_steps": 0}
    if (kept.weight_version_B != policy.version).any():
        raise RuntimeError(
            f"policy {policy.name!r} is at version {policy.version} but a group was sampled at "
            f"version {kept.weight_version_B.min()}; only on-policy groups may be learned from"
        )
    temperature = jnp.float32(config.rollout.temperature)
    draws = keys(config.seed, "thin", kept.environment_B, kept.agent_B, kept.turn_B, policy.version)
    uniform_B = draws[:, 0] / 2.0**32
    batch = pack(kept, config.update.keep, config.update.share_prompt, uniform_B)
    parts = minibatches(batch, config, policy.version, team.rooms[policy.name])
    if optimiser_steps_per_rollout(config) > 1:
        parts = [freeze_old(policy, part, temperature) for part in parts]
    rows = []
    for _ in range(config.update.epochs):
        for part in parts:
            policy.params, policy.opt_state, values = team.update(
                policy.params,
                policy.opt_state,
                policy.reference,
                place_rows(team.mesh, part, axis=1),
                temperature,
            )
            rows.append(values)
    policy.version += 1
    measured = [jax.device_get(row) for row in rows]
    means = {name: float(np.mean([row[name] for row in measured])) for name in measured[0]}
    # The gap to the sampler is that of the unmoved weights: the first step's.
    means |= {name: float(measured[0][name]) for name in ("sampler_gap", "sampler_gap_max")}
    means["tokens"] = float(sum(row["tokens"] for row in measured)) / config.update.epochs
    steps = optimizer_count(policy.opt_state)
    return (
        metrics
        | means
        | {
            "optimiser_steps": len(rows),
            "learning_rate": float(team.schedule(steps - 1)),
        }
    )


def minibatches(batch: Batch, config: RunConfig, version: int, most: int) -> list[Batch]:
    """Splits rows into the configured number of minibatches, each in micro-batches."""
    rows = len(batch.prompt_BxS)
    order = np.random.default_rng([config.seed, version]).permutation(rows)
    pieces = [piece for piece in np.array_split(order, config.update.minibatches) if len(piece)]
    return [
        split_micro(
            Batch(**{name: value[piece] for name, value in vars(batch).items()}),
            config.update.micro_batch,
            most,
            config.rollout.prompt_tokens,
        )
        for piece in pieces
    ]


def freeze_old(policy: Policy, part: Batch, temperature: jax.Array) -> Batch:
    """The minibatch with the learner's log-probabilities before any step on this rollout."""
    old = score(policy.config, policy.params, part, temperature)
    return Batch(**{**vars(part), "old_BxKxR": np.asarray(old)})


def optimizer_count(opt_state: Any) -> int:
    """Optimiser steps taken so far, out of the optimizer's own state."""
    return int(optax.tree_utils.tree_get(opt_state, "ScaleByAdamState").count)


def state_of(team: Team, tokens: int = 0) -> dict[str, Any]:
    """Everything that a checkpoint keeps: the policies, and the tokens sampled so far."""
    policies = {
        name: {
            "params": policy.params,
            "opt_state": policy.opt_state,
            "version": np.asarray(policy.version, np.int32),
        }
        for name, policy in team.policies.items()
    }
    return {"policies": policies, "tokens": np.int64(tokens)}


def put_state(team: Team, state: dict[str, Any]) -> int:
    """Takes over what a checkpoint holds; returns the tokens sampled so far."""
    for name, policy in team.policies.items():
        stored = state["policies"][name]
        policy.params, policy.opt_state = stored["params"], stored["opt_state"]
        policy.version = int(stored["version"])
    return int(state["tokens"])
