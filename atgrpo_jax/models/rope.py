"""Rotary position embedding: frequencies of a head, Llama-3's stretched ones included."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class RopeScaling:
    """Llama-3's stretch of long wavelengths; names as in config.json, lengths in tokens."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


def frequencies(head_size: int, theta: float, scaling: RopeScaling | None) -> np.ndarray:
    """Radians a position, float32 [head_size / 2], fastest first.

    Stretched: wavelengths beyond original/low are divided by `factor`, those below original/high
    stay, and in between the two are mixed linearly in original/wavelength (Llama 3.1).
    """
    half = head_size // 2
    frequency = float(theta) ** (-np.arange(half, dtype=np.float64) / half)
    if scaling is not None:
        turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
        frequency *= kept + (1.0 - kept) / scaling.factor
    return frequency.astype(np.float32)


def rotate(x: jax.Array, positions: jax.Array, frequency: np.ndarray) -> jax.Array:
    """Rotates x [..., heads, H] by `positions` [...], halves paired as in the published weights."""
    half = x.shape[-1] // 2
    angle = positions.astype(jnp.float32)[..., None, None] * frequency
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
