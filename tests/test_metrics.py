"""The logger: one value a step whatever happens, and no value that stops a run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from atgrpo_jax.metrics import ALARM_STEPS, COLUMNS, Logger, progress

ROOT = Path(__file__).resolve().parents[1]


def rows(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def events(workdir):
    """(tag, step, value) as a TensorBoard that honours session starts shows them."""
    shown = []
    for file in sorted((workdir / "tensorboard").iterdir()):
        data, at = file.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += 16 + size
            if event.session_log.status == 1:
                shown = [item for item in shown if item[1] < event.step]
            shown += [(v.tag, event.step, v.simple_value) for v in event.summary.value]
    return shown


def test_a_line_is_on_disk_as_soon_as_it_is_logged(tmp_path):
    with Logger(tmp_path, 0) as logger:
        logger.log(0, {"a": 1.5})
        assert rows(tmp_path)[0] == {"step": 0, "a": 1.5, "log/not_finite": 0.0}


def test_a_resume_leaves_one_value_a_step_in_both_logs(tmp_path):
    for start, stop in ((0, 16), (10, 21)):
        with Logger(tmp_path, start) as logger:
            for step in range(start, stop):
                logger.log(step, {"a": step + start / 100})
    assert [row["step"] for row in rows(tmp_path)] == list(range(21))
    assert rows(tmp_path)[12]["a"] == 12.1
    shown = [(step, round(value, 3)) for tag, step, value in events(tmp_path) if tag == "a"]
    assert shown == [(s, round(s + 0.1 * (s >= 10), 3)) for s in range(21)]


def test_a_restart_at_zero_forgets_the_first_attempt(tmp_path):
    for value in (1.0, 2.0):
        with Logger(tmp_path, 0) as logger:
            logger.log(0, {"a": value})
    assert [row["a"] for row in rows(tmp_path)] == [2.0]
    assert [item for item in events(tmp_path) if item[0] == "a"] == [("a", 0, 2.0)]


def test_a_half_written_last_line_is_dropped(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "a": 1}\n{"step": 1, "a"')
    with Logger(tmp_path, 5) as logger:
        logger.log(5, {})
    assert [row["step"] for row in rows(tmp_path)] == [0, 5]


def test_values_that_are_no_numbers_are_named_once_and_left_out(tmp_path, capsys):
    bad = {"a": "x", "b": None, "c": np.ones(2), "d": ["p", "q"]}
    good = {"e": jnp.bfloat16(1.5), "f": True, "g": np.int64(3), "h": jnp.ones((1, 1))}
    with Logger(tmp_path, 0) as logger:
        for step in (0, 1):
            logger.log(step, bad | good)
    wanted = {"e": 1.5, "f": 1.0, "g": 3.0, "h": 1.0, "log/not_finite": 0.0}
    assert rows(tmp_path) == [{"step": step, **wanted} for step in (0, 1)]
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in said] == ["a", "b", "c", "d"]


def test_nan_and_infinity_are_counted_named_with_their_step_and_never_drawn(tmp_path, capsys):
    with Logger(tmp_path, 0) as logger:
        logger.log(7, {"reward": float("nan"), "loss": float("inf"), "a": 1.0})
    assert rows(tmp_path) == [{"step": 7, "a": 1.0, "log/not_finite": 2.0}]
    assert {tag for tag, _, _ in events(tmp_path)} == {"a", "log/not_finite"}
    assert "metric reward at step 7 is nan" in capsys.readouterr().err


def test_a_share_stuck_at_one_is_warned_of_once(tmp_path, capsys):
    with Logger(tmp_path, 0) as logger:
        for step in range(ALARM_STEPS + 3):
            logger.log(step, {"rollout/truncated": 1.0, "groups/without_contrast": step % 2})
    said = capsys.readouterr().err
    assert said.count("max_new_tokens") == 1
    assert "contrast" not in said


def test_trees_are_one_json_object_a_line_and_go_with_a_resume(tmp_path):
    with Logger(tmp_path, 0) as logger:
        logger.trees(3, [{"reward": np.float32(0.5)}, {"ids": np.arange(2)}])
        logger.trees(4, [{"a": 1}])
        logger.trees(5, [])
    folder = tmp_path / "rollouts"
    lines = (folder / "step_000003.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"reward": 0.5}, {"ids": [0, 1]}]
    assert len(os.listdir(folder)) == 2
    Logger(tmp_path, 4).close()
    assert os.listdir(folder) == ["step_000003.jsonl"]


def test_the_console_line_fits_eighty_columns():
    values = dict.fromkeys(COLUMNS.values(), 0.12345)
    line = progress(123456, 200000, values, 12345.6)
    assert len(line) < 80
    assert line.startswith("step 123456/200000  held-out 0.123")
    assert line.endswith("12345.6 s")
    assert progress(3, None, {}, 1.0) == "step 3  1.0 s"


WRITE = """
import os, sys, time, signal
from atgrpo_jax.metrics import Logger
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
with Logger({0!r}, 0) as logger:
    for step in range(5):
        logger.log(step, {{"a": step}})
    {1}
"""


@pytest.mark.parametrize(
    ("ending", "board"),
    [
        ("pass", True),
        ("raise ValueError", True),
        ("raise KeyboardInterrupt", True),
        ("time.sleep(60)", True),
        ("os._exit(1)", False),
    ],
)
def test_nothing_logged_is_lost_however_the_process_ends(tmp_path, ending, board):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE.format(str(tmp_path), ending)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    for _ in range(5):
        process.stdout.readline()
    if "sleep" in ending:
        time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert [row["step"] for row in rows(tmp_path)] == list(range(5))
    if board:  # a hard kill may lose events of TensorBoard's queue; metrics.jsonl has them
        assert len([item for item in events(tmp_path) if item[0] == "a"]) == 5
