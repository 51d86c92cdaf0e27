"""Makes the tiny starting policy of a task: supervised on the solver's answers, stopped early.

    python launch/make_tiny_policy.py --config=configs/sokoban.py --out=assets/tiny_sokoban
    python launch/make_tiny_policy.py --config=configs/plan_path.py --out=assets/tiny_plan_path \
        --steps=76

It stands for a pretrained language model: the answer format is right, the skill low but real. Every
`--report` steps the held-out success is printed; training stops at `--steps`. Seeded.
"""

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from absl import app, flags  # noqa: E402
from ml_collections import config_flags  # noqa: E402

from atgrpo_jax.config import RunConfig, from_config_dict  # noqa: E402
from atgrpo_jax.demonstrations import Demonstrations, collect  # noqa: E402
from atgrpo_jax.evaluate import evaluate  # noqa: E402
from atgrpo_jax.mesh import make_mesh  # noqa: E402
from atgrpo_jax.models import decoder, hf, words  # noqa: E402
from atgrpo_jax.models.chat import Chat, load_chat  # noqa: E402
from atgrpo_jax.models.decoder import ModelConfig, Params  # noqa: E402
from atgrpo_jax.policy import Policy, parameter_count  # noqa: E402
from atgrpo_jax.samplers.jax_sampler import JaxSampler  # noqa: E402
from atgrpo_jax.update import Batch, row_logprobs  # noqa: E402
from atgrpo_jax.workflows import WORKFLOWS  # noqa: E402
from environments.game import GameTask  # noqa: E402
from environments.registry import make_task  # noqa: E402

CONFIG = config_flags.DEFINE_config_file("config", help_string="configs/TASK.py")
OUT = flags.DEFINE_string("out", None, "Directory of the new policy.", required=True)
STEPS = flags.DEFINE_integer("steps", 110, "Optimiser steps; few, so that skill stays low.")
BATCH = flags.DEFINE_integer("batch", 256, "Demonstrations a step.")
RATE = flags.DEFINE_float("rate", 2e-3, "Peak learning rate.")
LAYERS = flags.DEFINE_integer("layers", 4, "Decoder layers.")
WIDTH = flags.DEFINE_integer("width", 128, "Width of the decoder.")
SLIP = flags.DEFINE_float("slip", 0.3, "Chance of a random move in what agents are shown.")
REPORT = flags.DEFINE_integer("report", 55, "Steps between held-out evaluations.")
EPISODES = flags.DEFINE_integer("episodes", 512, "Held-out boards of an evaluation.")
POSITIONS = 192  # longest prompt plus answer


def make_chat(task: GameTask, out: str) -> Chat:
    """Tokenizer of the task's compact rendering; an answer ends at its closing bracket."""
    tokenizer = words.build_tokenizer(task.text.vocabulary(), POSITIONS)
    words.save_tokenizer(tokenizer, out, stops=["]", words.END])
    return load_chat(out, POSITIONS)


def model_config(vocabulary: int) -> ModelConfig:
    """A small Qwen3."""
    width = WIDTH.value
    return ModelConfig(
        family="qwen3",
        vocab_size=vocabulary,
        width=width,
        layers=LAYERS.value,
        heads=4,
        kv_heads=2,
        head_size=width // 4,
        ffn=2 * width,
        rope_theta=10000.0,
        norm_eps=1e-6,
        tied_head=True,
        qk_norm=True,
        max_positions=POSITIONS,
    )


def demonstrations(task: GameTask, chat: Chat, config: RunConfig) -> list[Demonstrations]:
    """Enough of both workflows that no demonstration is seen twice."""
    wanted = STEPS.value * BATCH.value // 2
    sets = []
    for name in ("planner_tool", "solo"):
        workflow = WORKFLOWS[name]
        rows = 256 * config.rollout.turns * len(workflow.agents) // 2
        sets.append(
            collect(
                task,
                workflow,
                chat,
                seed=config.seed,
                batches=max(wanted // rows, 1),
                environments=256,
                turns=config.rollout.turns,
                slip=SLIP.value,
            )
        )
    return sets


def draw(sets: list[Demonstrations], random: np.random.Generator, length: int) -> Batch:
    """A batch of single responses, three quarters of them from the team's workflow."""
    parts = []
    for share, data in zip((0.75, 0.25), sets, strict=True):
        index = random.integers(0, len(data.prompt_NxS), int(BATCH.value * share))
        parts.append((data, index))
    responses = max(data.answer_NxR.shape[1] for data in sets)

    def stack(name: str, width: int) -> np.ndarray:
        rows = [getattr(data, name)[index] for data, index in parts]
        return np.concatenate([np.pad(row, ((0, 0), (0, width - row.shape[1]))) for row in rows])

    lengths = [
        np.concatenate([getattr(data, name)[index] for data, index in parts])[:, None]
        for name in ("prompt_length_N", "answer_length_N")
    ]
    empty = np.zeros((BATCH.value, 1, responses), np.float32)
    return Batch(
        prompt_BxS=stack("prompt_NxS", length),
        prompt_mask_BxS=np.arange(length) < lengths[0],
        response_BxKxR=stack("answer_NxR", responses)[:, None],
        mask_BxKxR=(np.arange(responses) < lengths[1])[:, None],
        advantage_BxK=np.ones((BATCH.value, 1), np.float32),
        weight_BxK=np.ones((BATCH.value, 1), np.float32),
        sampler_BxKxR=empty,
        old_BxKxR=empty,
    )


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=(2, 3))
def step(
    config: ModelConfig,
    optimizer: optax.GradientTransformation,
    params: Params,
    opt_state: Any,
    batch: Batch,
) -> tuple[Params, Any, jax.Array]:
    """One step of maximum likelihood on the answers' tokens."""

    def loss(params: Params) -> jax.Array:
        logprob, _ = row_logprobs(config, params, batch, jnp.float32(1.0))
        return -jnp.where(batch.mask_BxKxR, logprob, 0.0).sum() / batch.mask_BxKxR.sum()

    value, gradient = jax.value_and_grad(loss)(params)
    updates, opt_state = optimizer.update(gradient, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value


def report(task: GameTask, policy: Policy, config: RunConfig) -> str:
    """Held-out success of the team and of the single agent, sampled and greedy."""
    sampler = JaxSampler(make_mesh(-1, 1, 1), prompt_tokens=config.rollout.prompt_tokens)
    shown = []
    for name in ("planner_tool", "solo"):
        workflow = WORKFLOWS[name]
        router = {agent.name: policy.name for agent in workflow.agents}
        for temperature in (1.0, 0.0):
            metrics = evaluate(
                task, workflow, {policy.name: policy}, router, sampler, config,
                episodes=EPISODES.value, temperature=temperature,
            )  # fmt: skip
            kind = "sampled" if temperature else "greedy"
            shown.append(f"{name} {kind} {metrics['evaluate/success']:.3f}")
    return ", ".join(shown)


def main(_: list[str]) -> None:
    config = from_config_dict(CONFIG.value)
    task = make_task(config.environment)
    Path(OUT.value).mkdir(parents=True, exist_ok=True)
    chat = make_chat(task, OUT.value)
    model = model_config(len(chat.tokenizer))
    params = decoder.init_params(model, jax.random.key(config.seed))
    print(f"{parameter_count(params):,} parameters, vocabulary {model.vocab_size}")
    began = time.time()
    sets = demonstrations(task, chat, config)
    longest = max(data.prompt_NxS.shape[1] for data in sets)
    print(f"{[len(s.prompt_NxS) for s in sets]} demonstrations, prompts up to {longest} tokens, "
          f"{time.time() - began:.0f} s")  # fmt: skip
    schedule = optax.warmup_cosine_decay_schedule(0.0, RATE.value, 20, STEPS.value, RATE.value / 10)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.01)
    )
    opt_state = optimizer.init(params)
    random = np.random.default_rng(config.seed)
    for number in range(1, STEPS.value + 1):
        batch = draw(sets, random, longest)
        params, opt_state, value = step(model, optimizer, params, opt_state, batch)
        if number % REPORT.value == 0 or number == STEPS.value:
            policy = Policy("tiny", model, chat, params)
            print(f"step {number} loss {value:.3f} {time.time() - began:.0f} s: "
                  f"{report(task, policy, config)}", flush=True)  # fmt: skip
    source = Path(OUT.value)
    hf.write(source, model, params, dtype="bfloat16")


if __name__ == "__main__":
    app.run(main)
