"""What a rollout leaves behind: groups as a struct of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Groups:
    """B groups of up to K responses, each group to one prompt.

    The key of a group is (environment, agent, turn). Prompts and responses are right-padded;
    nothing under `mask_BxKxR` or `member_BxK` False may be read. Advantages are zeros until
    computed.
    """

    environment_B: np.ndarray  # int32
    agent_B: np.ndarray  # int32, index into Workflow.agents
    turn_B: np.ndarray  # int32
    prompt_BxS: np.ndarray  # int32
    prompt_length_B: np.ndarray  # int32
    response_BxKxR: np.ndarray  # int32
    mask_BxKxR: np.ndarray  # bool: sampled tokens, the stop token included
    logprob_BxKxR: np.ndarray  # float32, the sampler's, at the sampling temperature
    finish_BxK: np.ndarray  # int8: samplers.base.STOP, LENGTH or ABORT
    member_BxK: np.ndarray  # bool: False where infrastructure failed
    reward_BxK: np.ndarray  # float32
    parts: dict[str, np.ndarray]  # float32 [B, K] each
    chosen_B: np.ndarray  # int32: the branch that advanced the state, -1 for none
    weight_version_B: np.ndarray  # int32
    advantage_BxK: np.ndarray  # float32

    def __len__(self) -> int:
        return len(self.environment_B)


def select(groups: Groups, index_B: np.ndarray) -> Groups:
    """The groups at `index_B`, in that order."""
    picked = {
        field.name: getattr(groups, field.name)[index_B]
        for field in fields(groups)
        if field.name != "parts"
    }
    return Groups(**picked, parts={name: part[index_B] for name, part in groups.parts.items()})


def concatenate(several: Sequence[Groups]) -> Groups:
    """One record of all groups; prompts are padded to the longest.

    Raises ValueError when the records differ in branches or response length. Parts that only
    some records have are kept where all have them.
    """
    shapes = {groups.response_BxKxR.shape[1:] for groups in several}
    if len(shapes) != 1:
        raise ValueError(f"groups of different [branches, response] shapes {sorted(shapes)}")
    longest = max(groups.prompt_BxS.shape[1] for groups in several)
    padded = [
        replace(
            groups,
            prompt_BxS=np.pad(
                groups.prompt_BxS, ((0, 0), (0, longest - groups.prompt_BxS.shape[1]))
            ),
        )
        for groups in several
    ]
    joined = {
        field.name: np.concatenate([getattr(groups, field.name) for groups in padded])
        for field in fields(Groups)
        if field.name != "parts"
    }
    names = [name for name in several[0].parts if all(name in g.parts for g in several)]
    parts = {name: np.concatenate([groups.parts[name] for groups in several]) for name in names}
    return Groups(**joined, parts=parts)


def check_keys(groups: Groups) -> None:
    """Raises ValueError unless every (environment, agent, turn) occurs once."""
    keys = np.stack([groups.environment_B, groups.agent_B, groups.turn_B], axis=1)
    unique, counts = np.unique(keys, axis=0, return_counts=True)
    if (counts > 1).any():
        key = tuple(int(value) for value in unique[counts > 1][0])
        raise ValueError(f"group key (environment, agent, turn) = {key} occurs more than once")


@dataclass(frozen=True)
class Rollout:
    """One step's data: per agent one or more records, metrics, and trees for the viewer."""

    groups: dict[str, tuple[Groups, ...]]
    statistics: dict[str, float]
    trees: list[dict[str, Any]]


def check_failures(groups: dict[str, tuple[Groups, ...]], limit: float) -> None:
    """Raises RuntimeError when more than `limit` of all candidates could not be scored."""
    members = [record.member_BxK for records in groups.values() for record in records]
    total = sum(member.size for member in members)
    failed = total - sum(int(member.sum()) for member in members)
    if failed > limit * total:
        raise RuntimeError(
            f"{failed} of {total} candidates could not be sampled or scored, more than "
            f"rollout.max_failure_rate={limit:g}; look at the environment's own errors"
        )


def singles(groups: Groups) -> Groups:
    """Every member as a group of its own, its advantage as it was; dropped members are left out."""
    branches = groups.member_BxK.shape[1]
    keep = groups.member_BxK.reshape(-1)

    def split(value: np.ndarray) -> np.ndarray:
        if value.ndim > 1 and value.shape[:2] == groups.member_BxK.shape:
            return value.reshape(-1, 1, *value.shape[2:])[keep]
        return np.repeat(value, branches, axis=0)[keep]

    values = {
        field.name: split(getattr(groups, field.name))
        for field in fields(groups)
        if field.name not in ("parts", "prompt_BxS", "chosen_B")
    }
    values["prompt_BxS"] = np.repeat(groups.prompt_BxS, branches, axis=0)[keep]
    values["chosen_B"] = np.zeros(int(keep.sum()), np.int32)
    return Groups(**values, parts={name: split(part) for name, part in groups.parts.items()})


def join_prompts(groups: Groups, members: int) -> Groups:
    """Single responses to one prompt of one key as rows of up to `members`; places left over are no
    members. Every response keeps its reward and advantage, and the prompt is computed once.
    """
    rows: dict[tuple, list[list[int]]] = {}
    for b in range(len(groups)):
        key = (
            int(groups.environment_B[b]),
            int(groups.agent_B[b]),
            int(groups.turn_B[b]),
            groups.prompt_BxS[b, : groups.prompt_length_B[b]].tobytes(),
        )
        found = rows.setdefault(key, [[]])
        if len(found[-1]) == members:
            found.append([])
        found[-1].append(b)
    index = [row for several in rows.values() for row in several]
    filled = np.array([[k < len(row) for k in range(members)] for row in index])
    at_BxK = np.array([row + row[:1] * (members - len(row)) for row in index])

    def join(value: np.ndarray) -> np.ndarray:
        return value[at_BxK, 0] if value.ndim > 1 else value[at_BxK[:, 0]]

    joined = {
        field.name: join(getattr(groups, field.name))
        for field in fields(Groups)
        if field.name not in ("parts", "prompt_BxS")
    }
    joined["member_BxK"] &= filled
    joined["advantage_BxK"] = np.where(filled, joined["advantage_BxK"], 0.0).astype(np.float32)
    return Groups(
        **joined,
        prompt_BxS=groups.prompt_BxS[at_BxK[:, 0]],
        parts={name: join(part) for name, part in groups.parts.items()},
    )
