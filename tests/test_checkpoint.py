"""Checkpoints: exact, complete, newest and best kept, damage survived and said."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from atgrpo_jax.checkpoint import CheckpointError, Checkpoints

OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))


def fresh(seed=0):
    params = {"layers.0.k": jax.random.normal(jax.random.key(seed), (8, 4)), "b": jnp.zeros(4)}
    return {"params": params, "opt_state": OPTIMIZER.init(params), "versions": {"team": 0}}


@jax.jit
def advance(params, opt_state):
    gradients = jax.tree.map(lambda p: jnp.sin(p) + 1.0, params)
    updates, opt_state = OPTIMIZER.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def train(state, steps):
    params, opt_state = state["params"], state["opt_state"]
    for _ in range(steps):
        params, opt_state = advance(params, opt_state)
    return {"params": params, "opt_state": opt_state, "versions": {"team": steps}}


def tiny(value):
    return {"x": jnp.full(3, value, jnp.float32)}


def newest(workdir, target=None, keep=3):
    with Checkpoints(workdir, keep) as checkpoints:
        return checkpoints.restore_latest(tiny(0) if target is None else target)


def break_step(workdir, step):
    files = [
        f for f in (workdir / "checkpoints/steps" / str(step) / "state").rglob("*") if f.is_file()
    ]
    for file in files:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def test_a_new_run_has_nothing_to_restore(tmp_path):
    assert newest(tmp_path) is None


def test_the_update_after_a_resume_equals_the_uninterrupted_one(tmp_path):
    state = train(fresh(), 5)
    with Checkpoints(tmp_path, 2) as checkpoints:
        checkpoints.save(5, state)
    step, restored = newest(tmp_path, fresh(1))
    assert step == 5
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for one, two in zip(jax.tree.leaves(state), jax.tree.leaves(restored), strict=True):
        np.testing.assert_array_equal(one, two)
        assert np.asarray(one).dtype == np.asarray(two).dtype
    for one, two in zip(*(jax.tree.leaves(train(s, 1)) for s in (state, restored)), strict=True):
        np.testing.assert_array_equal(one, two)


def test_what_is_saved_is_the_state_at_the_call(tmp_path):
    consume = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    with Checkpoints(tmp_path, 3) as checkpoints:
        for step in (1, 2, 3):
            device, host = jnp.full(200_000, float(step)), np.full(200_000, float(step))
            checkpoints.save(step, {"device": device, "host": host})
            consume(device)
            host[:] = -1.0
    target = {"device": jnp.zeros(200_000), "host": np.zeros(200_000)}
    with Checkpoints(tmp_path, 3) as checkpoints:
        for step in (3, 2, 1):
            found, state = checkpoints.restore_latest(target)
            assert found == step
            assert (np.asarray(state["device"]) == step).all()
            assert (np.asarray(state["host"]) == step).all()
            checkpoints._steps.delete(step)


def test_the_newest_is_kept_when_the_score_falls_and_the_best_beside_it(tmp_path):
    with Checkpoints(tmp_path, 3) as checkpoints:
        for step, score in enumerate([0.7, 0.9, 0.8, 0.6, 0.5], 1):
            checkpoints.save(step, tiny(step), score)
        assert sorted(checkpoints._steps.all_steps()) == [3, 4, 5]
    with Checkpoints(tmp_path, 3) as checkpoints:
        assert checkpoints.best_score() == 0.9
        assert checkpoints.restore_latest(tiny(0))[0] == 5
        step, state = checkpoints.restore_best(tiny(0))
        assert (step, float(state["x"][0])) == (2, 2.0)


def test_the_restored_step_is_never_removed_to_be_written_again(tmp_path):
    with Checkpoints(tmp_path, 1) as checkpoints:
        checkpoints.save(20, tiny(20))  # killed before the score of this step was kept as the best
    folder = tmp_path / "checkpoints/steps/20"
    written = folder.stat().st_mtime_ns
    with Checkpoints(tmp_path, 1) as checkpoints:
        step, state = checkpoints.restore_latest(tiny(0))
        checkpoints.save(step, state, 0.5)
        assert checkpoints.restore_best(tiny(0))[0] == 20
        assert folder.stat().st_mtime_ns == written
        checkpoints.save(40, tiny(40), 0.4)
    assert newest(tmp_path)[0] == 40
    assert not folder.exists()


def test_nan_is_the_worst_score_and_is_reported(tmp_path, capsys):
    with Checkpoints(tmp_path, 3) as checkpoints:
        for step, score in enumerate([float("nan"), 0.1, 0.2, float("nan")], 1):
            checkpoints.save(step, tiny(step), score)
        assert checkpoints.best_score() == 0.2
        assert checkpoints.restore_best(tiny(0))[0] == 3
    assert "score at step 4 is NaN" in capsys.readouterr().err


def test_a_best_state_below_an_older_best_step_still_gets_saved(tmp_path):
    with Checkpoints(tmp_path, 3) as checkpoints:
        checkpoints.save(40, tiny(40), 0.5)
        checkpoints.save(30, tiny(30), 0.6)
        assert checkpoints.restore_best(tiny(0))[0] == 30


def test_saving_again_at_or_below_the_newest_step_replaces_what_follows(tmp_path):
    with Checkpoints(tmp_path, 5) as checkpoints:
        for step, value in ((5, 5), (10, 10), (10, 11), (5, 6)):
            checkpoints.save(step, tiny(value))
        assert list(checkpoints._steps.all_steps()) == [5]
    assert float(newest(tmp_path)[1]["x"][0]) == 6.0


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(tmp_path, capsys):
    with Checkpoints(tmp_path, 3) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, tiny(step))
    break_step(tmp_path, 2)
    step, state = newest(tmp_path)
    assert (step, float(state["x"][0])) == (1, 1.0)
    said = capsys.readouterr().err
    assert "steps/2 is damaged" in said
    assert said.count("\n") == 1


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_afresh(tmp_path):
    with Checkpoints(tmp_path, 3) as checkpoints:
        checkpoints.save(1, tiny(1))
    break_step(tmp_path, 1)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        newest(tmp_path)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"x": jnp.zeros(4)}, r"float32\[3\]"),
        ({"x": jnp.zeros(3, jnp.bfloat16)}, "bfloat16"),
        ({"y": jnp.zeros(3)}, r"lacks \['y'\]"),
        ({}, "unknown"),
    ],
)
def test_another_shape_dtype_or_tree_is_refused_not_cast_or_dropped(tmp_path, target, words):
    with Checkpoints(tmp_path, 3) as checkpoints:
        checkpoints.save(1, tiny(1))
    with pytest.raises(CheckpointError, match=words):
        newest(tmp_path, target)


def test_lists_and_key_data_come_back_as_they_were(tmp_path):
    state = {"layers": [jnp.ones(2), jnp.zeros(2)], "data": np.array([1, 2], np.uint32)}
    with Checkpoints(tmp_path, 1) as checkpoints:
        checkpoints.save(1, state)
    restored = newest(tmp_path, jax.tree.map(np.zeros_like, state))[1]
    assert isinstance(restored["layers"], list)
    np.testing.assert_array_equal(restored["data"], state["data"])


def test_a_checkpoint_of_eight_devices_restores_on_two_and_on_one(tmp_path):
    def place(devices):
        mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
        return NamedSharding(mesh, PartitionSpec("data"))

    values = np.arange(16.0, dtype=np.float32)
    with Checkpoints(tmp_path, 1) as checkpoints:
        checkpoints.save(1, {"x": jax.device_put(values, place(8))})
    for devices in (2, 1):
        target = {"x": jax.device_put(np.zeros(16, np.float32), place(devices))}
        restored = newest(tmp_path, target)[1]["x"]
        assert restored.sharding == target["x"].sharding
        np.testing.assert_array_equal(restored, values)


def test_a_save_that_failed_in_the_background_surfaces_at_the_next_save_and_at_close(tmp_path):
    def failed():
        raise OSError("disk full")

    checkpoints = Checkpoints(tmp_path, 3)
    checkpoints.save(1, tiny(1))
    checkpoints._steps.check_for_errors = failed
    with pytest.raises(CheckpointError, match="disk full"):
        checkpoints.save(2, tiny(2))
    with pytest.raises(CheckpointError, match="disk full"):
        checkpoints.close()


def interrupted_run(workdir):
    with Checkpoints(workdir, 3) as checkpoints:
        checkpoints.save(1, tiny(1))
        raise KeyError


def test_an_exception_in_training_still_completes_the_pending_save(tmp_path):
    with pytest.raises(KeyError):
        interrupted_run(tmp_path)
    assert newest(tmp_path)[0] == 1
