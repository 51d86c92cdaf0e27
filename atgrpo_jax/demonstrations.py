"""Demonstrations from an environment's exact solver, through the workflow that RL will use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from atgrpo_jax.models.chat import Chat
from atgrpo_jax.rng import keys
from atgrpo_jax.workflows import Workflow
from environments.game import GameState, GameTask
from environments.legend import letters

TRAINING = 0


@dataclass(frozen=True)
class Demonstrations:
    """Prompts and shortest answers, right-padded; lengths say what counts."""

    prompt_NxS: np.ndarray
    prompt_length_N: np.ndarray
    answer_NxR: np.ndarray
    answer_length_N: np.ndarray


@partial(jax.jit, static_argnums=(0, 3))
def play_out(game: Any, boards: Any, keys_Ex2: jax.Array, length: int, slip: float) -> jax.Array:
    """Move lists int32 [E, length], -1 padded: a random shortest move each time, or, with
    probability `slip`, any move. Ends when solved."""

    def one(state: Any, key: jax.Array) -> jax.Array:
        def body(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            choice_key, slip_key = jax.random.split(key)
            best = game.optimal_moves(state)
            allowed = jnp.where(jax.random.bernoulli(slip_key, slip) | ~best.any(), True, best)
            noise = jax.random.uniform(choice_key, (4,))
            action = jnp.where(game.success(state), -1, jnp.where(allowed, noise, -1.0).argmax())
            return game.move(state, action), action

        return jax.lax.scan(body, state, jax.random.split(key, length))[1]

    return jax.vmap(one)(boards, jax.random.wrap_key_data(keys_Ex2)).astype(jnp.int32)


def answer(moves: np.ndarray) -> str:
    """A reply that the parser reads as these moves."""
    return "[ " + " ".join(letters(tuple(int(m) for m in moves if m >= 0))) + " ]"


def collect(
    task: GameTask,
    workflow: Workflow,
    chat: Chat,
    *,
    seed: int,
    batches: int,
    environments: int,
    turns: int,
    slip: float,
) -> Demonstrations:
    """Every agent's prompts along episodes played by a slipping solver, each with a shortest
    answer from where the agent stands. Training boards alone."""
    prompts: list[np.ndarray] = []
    answers: list[np.ndarray] = []
    for batch in range(batches):
        ids = np.arange(environments)
        state: GameState = task.reset(keys(seed, "demonstration", TRAINING, batch, ids), False)
        for turn in range(turns):
            for order, stage in enumerate(workflow.stages):
                live = np.flatnonzero(~task.status(state).done)
                if not len(live):
                    break
                draws = [keys(seed, "teacher", batch, turn, order, ids, use) for use in range(2)]
                best = np.asarray(play_out(task.game, state.boards, draws[0], task.max_moves, 0.0))
                shown = np.asarray(
                    play_out(task.game, state.boards, draws[1], task.max_moves, slip)
                )
                chosen = {}
                for agent in stage.agents:
                    talks = task.observe(state, agent, turn)
                    for e in live:
                        prompts.append(chat.encode(talks[e]))
                        text = answer(best[e])
                        answers.append(
                            np.asarray(chat.tokenizer.encode(text, add_special_tokens=False))
                        )
                    chosen[agent.name] = [answer(moves) for moves in shown]
                state, _ = task.advance(state, chosen, stage, turn)
    prompt, prompt_length = right_pad(prompts)
    reply, reply_length = right_pad(answers)
    return Demonstrations(prompt, prompt_length, reply, reply_length)


def right_pad(rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """int32 [N, longest] and lengths [N]."""
    lengths = np.array([len(row) for row in rows], np.int32)
    padded = np.zeros((len(rows), lengths.max()), np.int32)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded, lengths
