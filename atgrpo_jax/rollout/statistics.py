"""What a rollout reports: counts, means and, for the viewer, a few whole trees."""

from __future__ import annotations

from typing import Any

import numpy as np

from atgrpo_jax.rollout.branch import Branches
from atgrpo_jax.rollout.record import Groups
from atgrpo_jax.samplers.base import LENGTH
from atgrpo_jax.workflows import Agent
from environments.task import Report, Task


class Tally:
    """Collects along a rollout; `log` is the number of environments whose trees are kept."""

    def __init__(self, task: Task, state: Any, log: int) -> None:
        self.task, self.log = task, log
        self.nodes: dict[int, list[dict[str, Any]]] = {}
        self.reports: dict[str, list[Report]] = {}
        self.turns = np.zeros(len(task.status(state).done), np.int32)
        self.seconds = {"sample": 0.0, "environment": 0.0}

    def stage(self, turn: int, reports: dict[str, Report], sampling: float, rest: float) -> None:
        """Adds one stage: its reports and how long sampling and the rest of it took."""
        for name, report in reports.items():
            self.reports.setdefault(name, []).append(report)
            if "replied" in report:
                self.turns = np.where(report["replied"], turn + 1, self.turns)
        self.seconds["sample"] += sampling
        self.seconds["environment"] += rest

    def node(self, state: Any, agent: Agent, branches: Branches, groups: Groups) -> None:
        """Keeps one agent's groups of the first environments, text and numbers."""
        logged_b = np.flatnonzero(groups.environment_B < self.log)
        if not len(logged_b):
            return
        turn = int(groups.turn_B[0])
        prompts_E = self.task.observe(state, agent, turn)
        for b in logged_b:
            e = int(groups.environment_B[b])
            responses = [
                {
                    "text": branches.replies[b][k],
                    "reward": float(groups.reward_BxK[b, k]),
                    "parts": {name: float(part[b, k]) for name, part in groups.parts.items()},
                    "advantage": float(groups.advantage_BxK[b, k]),
                    "member": bool(groups.member_BxK[b, k]),
                    "tokens": int(groups.mask_BxKxR[b, k].sum()),
                }
                for k in range(groups.reward_BxK.shape[1])
            ]
            self.nodes.setdefault(e, []).append(
                {
                    "turn": turn,
                    "agent": agent.name,
                    "board": self.task.board(state, e),
                    "prompt": prompts_E[e],
                    "responses": responses,
                    "advanced": int(groups.chosen_B[b]),
                    "weight_version": int(groups.weight_version_B[b]),
                }
            )

    def trees(self) -> list[dict[str, Any]]:
        """One record an environment."""
        return [{"environment": e, "nodes": nodes} for e, nodes in sorted(self.nodes.items())]

    def summary(
        self, task: Task, state: Any, groups: dict[str, tuple[Groups, ...]]
    ) -> dict[str, float]:
        """The step's metrics; docs/metrics.md defines each name."""
        status = task.status(state)
        every = [record for records in groups.values() for record in records]
        metrics = {
            "rollout/success": float(status.success.mean()),
            "rollout/turns": float(self.turns.mean()),
            "rollout/moves": float(status.moves.mean()),
            "rollout/reward": member_mean(every, [g.reward_BxK for g in every]),
            "rollout/truncated": member_mean(every, [g.finish_BxK == LENGTH for g in every]),
            "rollout/tokens": float(sum(g.mask_BxKxR.sum() for g in every)),
            "rollout/response_length": float(
                sum(g.mask_BxKxR.sum() for g in every) / sum(g.member_BxK.size for g in every)
            ),
            "rollout/failed": float(
                1 - np.mean(np.concatenate([g.member_BxK.ravel() for g in every]))
            ),
            "groups/count": float(sum(len(g) for g in every)),
            "groups/without_contrast": float(
                np.mean(np.concatenate([(g.advantage_BxK == 0).all(-1) for g in every]))
            ),
        }
        for agent, records in groups.items():
            metrics[f"{agent}/reward"] = member_mean(records, [g.reward_BxK for g in records])
            for part in records[0].parts:
                metrics[f"{agent}/part/{part}"] = member_mean(
                    records, [g.parts[part] for g in records]
                )
        metrics |= report_means(self.reports)
        return metrics | {f"seconds/{name}": value for name, value in self.seconds.items()}


def member_mean(records: Any, values: list[np.ndarray]) -> float:
    """Mean over the candidates that count."""
    total = sum(float(v[g.member_BxK].sum()) for g, v in zip(records, values, strict=True))
    return total / max(sum(int(g.member_BxK.sum()) for g in records), 1)


def report_means(reports: dict[str, list[Report]]) -> dict[str, float]:
    """Share of replies, among those that advanced, that were unreadable or copies."""
    means = {}
    for agent, several in reports.items():
        replied = sum(int(report["replied"].sum()) for report in several if "replied" in report)
        for name in ("format_error", "copied"):
            found = [report[name] & report["replied"] for report in several if name in report]
            if found:
                means[f"{agent}/{name}"] = float(sum(f.sum() for f in found) / max(replied, 1))
    return means
