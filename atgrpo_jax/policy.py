"""Policies and the router that sends each agent's data to one of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from atgrpo_jax.models.chat import Chat
from atgrpo_jax.models.decoder import ModelConfig, Params
from atgrpo_jax.workflows import Workflow


@dataclass
class Policy:
    """One trained model: its weights, optimizer state and how text becomes its tokens.

    `version` counts the optimiser updates that its weights have seen, one a training step.
    """

    name: str
    config: ModelConfig
    chat: Chat
    params: Params
    opt_state: Any = None
    version: int = 0
    reference: Params | None = field(default=None, repr=False)


def route(policies: str, workflow: Workflow) -> dict[str, str]:
    """Agent name -> policy name (sigma of the paper): `shared` (M=1) or `per_role` (M=N)."""
    agents = [agent.name for stage in workflow.stages for agent in stage.agents]
    if policies == "shared":
        return {agent: "team" for agent in agents}
    if policies == "per_role":
        return {agent: agent for agent in agents}
    raise ValueError(f"policies={policies!r} is unknown; use shared or per_role")


def swap(router: dict[str, str]) -> dict[str, str]:
    """The router with every agent given the next agent's policy; what `--swap_roles` plays."""
    agents = list(router)
    if len(set(router.values())) < 2:
        raise ValueError(
            "--swap_roles needs a run of policies=per_role; in this run all agents share a policy"
        )
    return {agent: router[agents[(i + 1) % len(agents)]] for i, agent in enumerate(agents)}


def real_copy(params: Params) -> Params:
    """A copy that no donation or in-place update of the original can touch."""
    return {name: jnp.array(value, copy=True) for name, value in params.items()}


def parameter_count(params: Params) -> int:
    """Number of scalars in `params`."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
