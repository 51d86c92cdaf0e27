"""A host-side environment for rollout tests: two agents answer one state in parallel.

Each writes digits; a reply's score is its share of digits equal to the environment's secret. Both
agree, and the episode ends, when their last replies are equal. Scoring runs in a worker pool, and
fails for replies that hold a "!".
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from atgrpo_jax.workflows import Agent, Stage, Workflow
from environments.task import Scores, Status

PAIR = Workflow("pair", (Stage((Agent("left", acts=True), Agent("right", acts=True))),))
LONE = Workflow("lone", (Stage((Agent("solo", acts=True),)),))
CHAIN = Workflow(
    "chain",
    (Stage((Agent("first", acts=True),)), Stage((Agent("second", acts=True, sees=("first",)),))),
)


@dataclass(frozen=True)
class ToyState:
    """Secrets [E], and everything said so far by environment."""

    secret_E: np.ndarray
    said: tuple[tuple[str, ...], ...]
    agreed_E: np.ndarray


class ToyTask:
    """A Task whose states are plain tuples; `log` notes every call in order."""

    parts = ("team", "match")

    def __init__(self, workers=3, score_error=None):
        self.pool = ThreadPoolExecutor(workers)
        self.log = []
        self.score_error = score_error

    def reset(self, keys_Ex2, heldout):
        count = len(keys_Ex2)
        secret = (keys_Ex2[:, 0] % 10).astype(int)
        return ToyState(secret, ((),) * count, np.zeros(count, bool))

    def repeat(self, state, K):
        said = tuple(row for row in state.said for _ in range(K))
        return ToyState(np.repeat(state.secret_E, K), said, np.repeat(state.agreed_E, K))

    def observe(self, state, agent, turn):
        return [
            [{"role": "user", "content": f"{agent.name} {turn} {secret} {' '.join(said)}"}]
            for secret, said in zip(state.secret_E, state.said, strict=True)
        ]

    def score(self, state, agent, replies, live_E):
        if self.score_error is not None:
            raise self.score_error
        self.log.append(("score", agent.name, state))
        return self.pool.submit(self._grade, state, replies, live_E)

    def _grade(self, state, replies, live_E):
        K = max((len(row) for row in replies), default=0)
        match = np.zeros((len(replies), K), np.float32)
        valid = np.ones((len(replies), K), bool)
        for e, row in enumerate(replies):
            for k, reply in enumerate(row):
                valid[e, k] = "!" not in reply
                digits = [c for c in reply if c.isdigit()]
                hits = sum(int(c) == state.secret_E[e] for c in digits)
                match[e, k] = hits / max(len(digits), 1) if valid[e, k] else np.nan
        return Scores({"team": (match == 1).astype(np.float32), "match": match}, valid)

    def advance(self, state, chosen, stage, turn):
        self.log.append(("advance", tuple(chosen), state))
        names = [agent.name for agent in stage.agents]
        said, agreed = list(state.said), state.agreed_E.copy()
        for e in range(len(said)):
            replies = [chosen[name][e] for name in names]
            if all(reply is None for reply in replies):
                continue
            said[e] = (*said[e], *[reply or "" for reply in replies])
            alike = len(set(replies)) == 1
            agreed[e] = alike and (len(names) > 1 or replies[0] == str(state.secret_E[e]))
        reports = {
            name: {"replied": np.array([reply is not None for reply in chosen[name]])}
            for name in names
        }
        return replace(state, said=tuple(said), agreed_E=agreed), reports

    def status(self, state):
        moves = np.array([len(said) for said in state.said])
        return Status(state.agreed_E.copy(), state.agreed_E.copy(), moves)

    def outcome(self, state):
        right = [
            bool(said) and said[-1] == str(s)
            for s, said in zip(state.secret_E, state.said, strict=True)
        ]
        return np.array(right, np.float32)

    def board(self, state, e):
        return {"kind": "toy", "rows": list(state.said[e]), "legend": {}}


def immediate(scores):
    """What score() of a task without a pool would return."""
    return scores.result() if isinstance(scores, Future) else scores
