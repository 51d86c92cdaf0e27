"""Streams are pure functions of counters and do not collide."""

import subprocess
import sys

import jax
import numpy as np
import pytest

from atgrpo_jax.rng import keys


def test_broadcasts_and_repeats():
    got = keys(3, "branch", 5, np.arange(4)[:, None], np.arange(6))
    assert got.shape == (4, 6, 2)
    assert got.dtype == np.uint32
    np.testing.assert_array_equal(got[2, 5], keys(3, "branch", 5, 2, 5))


def test_no_two_counters_share_a_key():
    got = np.concatenate(
        [
            keys(seed, stream, np.arange(50)[:, None], np.arange(50)).reshape(-1, 2)
            for seed in (0, 1, 2)
            for stream in ("level", "branch", "advance")
        ]
    )
    assert len(np.unique(got, axis=0)) == len(got)


def test_order_of_counters_matters():
    assert (keys(0, "level", 1, 2) != keys(0, "level", 2, 1)).any()
    assert (keys(0, "level", 1) != keys(0, "level", 1, 0)).any()


def test_bits_are_balanced():
    words = keys(0, "branch", np.arange(20000))
    ones = np.unpackbits(words.view(np.uint8), axis=-1).mean(0)
    assert np.abs(ones - 0.5).max() < 0.02


def test_the_same_in_a_process_of_another_hash_seed():
    code = "from atgrpo_jax.rng import keys; print(keys(7, 'level', 3, 4).tolist())"
    for seed in ("1", "2"):
        out = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
        )
        assert out.stdout.strip() == str(keys(7, "level", 3, 4).tolist()), out.stderr


def test_is_key_data_for_the_device():
    batch = jax.random.wrap_key_data(keys(0, "branch", np.arange(3)))
    assert len(np.unique(jax.vmap(jax.random.uniform)(batch))) == 3


def test_negative_counter_is_refused():
    with pytest.raises(ValueError, match="must be >= 0"):
        keys(0, "level", -1)
