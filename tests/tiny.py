"""A tiny random policy and random groups for tests of numerics."""

import jax
import numpy as np

from atgrpo_jax.models import decoder
from atgrpo_jax.models.decoder import ModelConfig
from atgrpo_jax.rollout.record import Groups

CONFIG = ModelConfig(
    family="qwen3",
    vocab_size=40,
    width=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_size=8,
    ffn=64,
    rope_theta=10000.0,
    norm_eps=1e-6,
    tied_head=True,
    qk_norm=True,
    max_positions=128,
)


class TokenChat:
    """A chat whose text is space-separated ids; enough for the sampler."""

    stop_ids = (3, 5)
    pad_id = 0
    max_positions = 128

    def encode(self, messages):
        return np.array([int(word) for word in messages[-1]["content"].split()], np.int32)

    def decode(self, ids):
        return " ".join(str(i) for i in ids)


def params(seed=0, scale=4.0):
    """Random weights, scaled up so that distributions are far from uniform."""
    values = decoder.init_params(CONFIG, jax.random.key(seed))
    return {name: value * scale if value.ndim > 1 else value for name, value in values.items()}


def groups(count, branches=4, prompt=9, response=6, seed=0):
    """Random groups with ragged prompts and responses and random advantages."""
    random = np.random.default_rng(seed)
    length = random.integers(3, prompt + 1, count)
    mask = np.arange(response) < random.integers(1, response + 1, (count, branches, 1))
    shape = (count, branches, response)
    tokens = random.integers(6, 40, shape) * mask
    return Groups(
        environment_B=np.arange(count, dtype=np.int32),
        agent_B=np.zeros(count, np.int32),
        turn_B=np.zeros(count, np.int32),
        prompt_BxS=(
            random.integers(6, 40, (count, prompt)) * (np.arange(prompt) < length[:, None])
        ).astype(np.int32),
        prompt_length_B=length.astype(np.int32),
        response_BxKxR=tokens.astype(np.int32),
        mask_BxKxR=mask,
        logprob_BxKxR=(-random.random(shape) * mask).astype(np.float32),
        finish_BxK=np.zeros((count, branches), np.int8),
        member_BxK=np.ones((count, branches), bool),
        reward_BxK=random.normal(size=(count, branches)).astype(np.float32),
        parts={},
        chosen_B=np.zeros(count, np.int32),
        weight_version_B=np.zeros(count, np.int32),
        advantage_BxK=random.normal(size=(count, branches)).astype(np.float32),
    )
