"""AdamW with clipping by global norm; the schedule counts optimiser steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from atgrpo_jax.mesh import shardings

if TYPE_CHECKING:
    from atgrpo_jax.config import UpdateConfig


def learning_rate_schedule(update: UpdateConfig, optimiser_steps: int) -> optax.Schedule:
    """Learning rate at optimiser step u (0-based): linear warm-up, then the chosen decay."""
    peak, final = update.learning_rate, update.learning_rate * update.final_fraction
    decay_steps = max(optimiser_steps - update.warmup_steps, 1)
    decays = {
        "constant": lambda: optax.constant_schedule(peak),
        "linear": lambda: optax.linear_schedule(peak, final, decay_steps),
        "cosine": lambda: optax.cosine_decay_schedule(peak, decay_steps, update.final_fraction),
    }
    decay = decays[update.schedule]()
    if update.warmup_steps == 0:
        return decay
    # The first step already learns: warm-up goes from peak / (w + 1), not from 0.
    warm_up = optax.linear_schedule(peak / (update.warmup_steps + 1), peak, update.warmup_steps)
    return optax.join_schedules([warm_up, decay], [update.warmup_steps])


def make_optimizer(update: UpdateConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Clip by global norm, then AdamW; weight decay leaves norms and biases alone."""

    def decayed(params: dict[str, jax.Array]) -> dict[str, bool]:
        return {name: not name.endswith((".scale", ".bias")) for name in params}

    return optax.chain(
        optax.clip_by_global_norm(update.clip_norm),
        optax.adamw(
            schedule,
            b1=update.beta1,
            b2=update.beta2,
            weight_decay=update.weight_decay,
            mask=decayed,
        ),
    )


def state_shardings(
    mesh: Mesh, optimizer: optax.GradientTransformation, params: dict[str, jax.Array]
) -> Any:
    """Where each part of the optimizer's state lives: moments beside their parameter."""
    placed = shardings(mesh, params)
    return optax.tree_utils.tree_map_params(
        optimizer,
        lambda _, where: where,
        jax.eval_shape(optimizer.init, params),
        placed,
        transform_non_params=lambda _: NamedSharding(mesh, PartitionSpec()),
    )
