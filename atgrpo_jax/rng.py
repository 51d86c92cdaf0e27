"""Every random stream of a run as a pure function of counters."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def _mix(value: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit words in which every input bit moves every output bit (SplitMix64)."""
    with np.errstate(over="ignore"):
        value = (value ^ (value >> np.uint64(30))) * _FIRST
        value = (value ^ (value >> np.uint64(27))) * _SECOND
    return value ^ (value >> np.uint64(31))


def keys(run_seed: int, stream: str, *counters: Any) -> np.ndarray:
    """Raw threefry key data uint32 [..., 2] for each combination of broadcast counters.

    On the device: jax.random.wrap_key_data. The same in every process and on every machine.
    Raises ValueError for a negative seed or counter.
    """
    words = [np.asarray(run_seed), np.asarray(zlib.crc32(stream.encode())), *counters]
    arrays = np.broadcast_arrays(*[np.asarray(word) for word in words])
    if any((array < 0).any() for array in arrays):
        raise ValueError(
            f"stream {stream!r} of run seed {run_seed}: seeds and counters must be >= 0"
        )
    state = np.zeros(arrays[0].shape, np.uint64)
    for position, array in enumerate(arrays, start=1):
        with np.errstate(over="ignore"):
            state = _mix(state + array.astype(np.uint64) + _STEP * np.uint64(position))
    halves = np.stack([state >> np.uint64(32), state & np.uint64(0xFFFFFFFF)], axis=-1)
    return halves.astype(np.uint32)
