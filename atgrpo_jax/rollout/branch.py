"""Branching: K responses of one agent to one prompt per environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atgrpo_jax.policy import Policy
from atgrpo_jax.rollout.record import Groups
from atgrpo_jax.samplers.base import Sampler, Samples
from atgrpo_jax.workflows import Agent
from environments.task import Task


@dataclass(frozen=True)
class Branches:
    """What B environments asked one agent, and K replies to each."""

    environment_B: np.ndarray
    prompts: list[np.ndarray]
    samples: Samples
    replies: list[list[str]]  # B x K


def ask(
    task: Task,
    state: Any,
    agent: Agent,
    turn: int,
    environment_B: np.ndarray,
    policy: Policy,
    sampler: Sampler,
    keys_BxKx2: np.ndarray,
    *,
    temperature: float,
    max_new_tokens: int,
) -> Branches:
    """Prompts the agent in the environments at `environment_B` and draws K replies to each."""
    conversations = task.observe(state, agent, turn)
    prompts = [policy.chat.encode(conversations[e]) for e in environment_B]
    samples = sampler.sample(
        policy, prompts, keys_BxKx2, temperature=temperature, max_new_tokens=max_new_tokens
    )
    return Branches(environment_B, prompts, samples, decode(policy, samples))


def decode(policy: Policy, samples: Samples) -> list[list[str]]:
    """Text of every response, sampled tokens alone; equal responses are decoded once."""
    known: dict[bytes, str] = {}

    def text(ids: np.ndarray) -> str:
        name = ids.tobytes()
        if name not in known:
            known[name] = policy.chat.decode(ids)
        return known[name]

    lengths = samples.mask_BxKxR.sum(-1)
    return [
        [text(ids[:length]) for ids, length in zip(row, row_lengths, strict=True)]
        for row, row_lengths in zip(samples.token_ids_BxKxR, lengths, strict=True)
    ]


def pad_prompts(prompts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Right-padded int32 [B, S] and lengths [B]."""
    length_B = np.array([len(prompt) for prompt in prompts], np.int32)
    padded = np.zeros((len(prompts), length_B.max()), np.int32)
    for row, prompt in zip(padded, prompts, strict=True):
        row[: len(prompt)] = prompt
    return padded, length_B


def to_groups(
    branches: Branches,
    agent_index: int,
    turn: int,
    member_BxK: np.ndarray,
    reward_BxK: np.ndarray,
    parts: dict[str, np.ndarray],
    chosen_B: np.ndarray,
    advantage_BxK: np.ndarray,
) -> Groups:
    """The record of one agent's branches in one turn."""
    samples = branches.samples
    prompt_BxS, length_B = pad_prompts(branches.prompts)
    count = len(branches.prompts)
    return Groups(
        environment_B=branches.environment_B.astype(np.int32),
        agent_B=np.full(count, agent_index, np.int32),
        turn_B=np.full(count, turn, np.int32),
        prompt_BxS=prompt_BxS,
        prompt_length_B=length_B,
        response_BxKxR=samples.token_ids_BxKxR,
        mask_BxKxR=samples.mask_BxKxR,
        logprob_BxKxR=samples.logprob_BxKxR,
        finish_BxK=samples.finish_BxK,
        member_BxK=member_BxK,
        reward_BxK=reward_BxK.astype(np.float32),
        parts=parts,
        chosen_B=chosen_B.astype(np.int32),
        weight_version_B=samples.weight_version_B,
        advantage_BxK=advantage_BxK.astype(np.float32),
    )
