"""Whole runs: they learn, go on after a kill as if nothing had happened, and stop compiling."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from atgrpo_jax import train
from atgrpo_jax.config import ConfigError, load_config
from atgrpo_jax.files import owned
from atgrpo_jax.metrics import Logger
from configs import sokoban
from tests.runs import changed

ROOT = Path(__file__).resolve().parents[1]
SMALL = [
    "--config=configs/sokoban.py:smoke",
    "--config.steps=12",
    "--config.checkpoint.every=2",
    "--config.rollout.environments=4",
    "--config.rollout.branches=2",
    "--config.rollout.sequences=16",
    "--config.evaluate.every=5",
    "--config.evaluate.final_episodes=16",
]


def small(**changes):
    loose = sokoban.get_config("smoke").to_dict()
    defaults = {
        "rollout__environments": 4, "rollout__branches": 4, "rollout__sequences": 16,
        "evaluate__episodes": 8, "evaluate__final_episodes": 16,
    }  # fmt: skip
    return changed(loose, {**defaults, **changes})


def rows(workdir):
    """What metrics.jsonl holds, without what depends on the clock."""
    lines = (Path(workdir) / "metrics.jsonl").read_text().splitlines()
    return [
        {name: value for name, value in json.loads(line).items() if "seconds" not in name}
        for line in lines
    ]


def start(workdir, *flags, cache):
    return subprocess.Popen(
        [sys.executable, "launch/train.py", f"--workdir={workdir}", *SMALL, *flags],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache), "XLA_FLAGS": "",
             "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An undisturbed run, its output, and a compilation cache for later ones."""
    root = tmp_path_factory.mktemp("runs")
    process = start(root / "whole", cache=root / "cache")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return root, out


def test_a_run_says_what_it_did_and_leaves_everything_behind(finished):
    root, out = finished
    assert "before  0." in out
    assert "after   0." in out
    assert f"python launch/view.py --workdir={root}/whole" in out
    assert max(len(line) for line in out.splitlines()) < 80 + 2 * len(str(root))
    got = rows(root / "whole")
    assert [row["step"] for row in got] == list(range(13))
    assert [row["step"] for row in got if "evaluate/success" in row] == [0, 5, 10, 12]
    assert "rollout/success" not in got[-1]
    assert max(row.get("update/team/sampler_gap_max", 0) for row in got) < 1e-4
    assert sum(row["rollout/tokens"] for row in got[:-1]) == got[-1]["tokens/sampled"]
    assert (root / "whole/policies/team/model.safetensors").exists()
    assert len(list((root / "whole/rollouts").iterdir())) == 12
    assert load_config(str(root / "whole")).steps == 12


def test_a_finished_run_has_nothing_left_to_do(finished):
    root, _ = finished
    before = (root / "whole/metrics.jsonl").read_bytes()
    process = start(root / "whole", cache=root / "cache")
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert "nothing left to do" in out
    assert (root / "whole/metrics.jsonl").read_bytes() == before


def test_ten_kills_change_nothing(finished):
    root, _ = finished
    chance = random.Random(0)
    workdir = root / "killed"
    for _ in range(10):
        process = start(workdir, cache=root / "cache")
        process.stdout.readline()  # it has claimed or resumed the workdir
        time.sleep(chance.uniform(0.0, 6.0))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = start(workdir, cache=root / "cache")
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert rows(workdir) == rows(root / "whole")


def test_a_termination_is_an_exit_that_loses_nothing(finished):
    root, _ = finished
    workdir = root / "terminated"
    process = start(workdir, cache=root / "cache")
    while not (workdir / "metrics.jsonl").exists() or not len(rows(workdir)):
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    process = start(workdir, cache=root / "cache")
    process.communicate(timeout=600)
    assert rows(workdir) == rows(root / "whole")


def test_nothing_compiles_after_the_first_two_steps(tmp_path, monkeypatch):
    compiled, at_step = [], {}

    def listen(name, seconds, **_):
        if name == "/jax/core/compile/backend_compile_duration":
            compiled.append(name)

    plain = Logger.log

    def log(self, step, metrics):
        at_step[step] = len(compiled)
        plain(self, step, metrics)

    monkeypatch.setattr(Logger, "log", log)
    jax.monitoring.register_event_duration_secs_listener(listen)
    config = small(
        steps=8, evaluate__every=3, checkpoint__every=2, log__trees_every=3, update__minibatches=2
    )
    train.run(config, str(tmp_path / "run"))
    assert at_step[1] > 0
    assert {
        step: count - at_step[1] for step, count in at_step.items() if step > 1
    } == dict.fromkeys(range(2, 9), 0)


def test_a_token_budget_ends_a_run(tmp_path):
    config = small(steps=50, sampled_tokens=100)
    train.run(config, str(tmp_path / "run"))
    got = rows(tmp_path / "run")
    assert 1 < len(got) < 10
    assert got[-2]["tokens/sampled"] < 100 <= got[-1]["tokens/sampled"]
    assert "evaluate/success" in got[-1]


def test_roles_of_their_own_share_nothing(tmp_path):
    train.run(small(policies="per_role"), str(tmp_path / "run"))
    got = rows(tmp_path / "run")
    assert min(got[0][f"update/{name}/optimiser_steps"] for name in ("tool", "planner")) > 0
    assert got[0]["update/tool/gradient_norm"] != got[0]["update/planner/gradient_norm"]
    weights = [
        (tmp_path / f"run/policies/{name}/model.safetensors").read_bytes()
        for name in ("tool", "planner")
    ]
    assert weights[0] != weights[1]


@pytest.mark.parametrize("algorithm", ["grpo", "at_grpo"])
def test_one_agent_runs_by_every_algorithm(tmp_path, algorithm):
    train.run(small(algorithm=algorithm, workflow="solo"), str(tmp_path / "run"))
    got = rows(tmp_path / "run")
    assert got[1]["update/team/tokens"] > 0
    assert got[1]["update/team/sampler_gap_max"] < 1e-4


BAD = [
    ({"model__path": "no/such/model"}, ValueError, "is no model directory"),
    ({"rollout__max_new_tokens": 500}, ValueError, "exceeds the context"),
    ({"mesh__data": 3}, ValueError, "does not cover 8 devices"),
    ({"update__micro_batch": 3}, ValueError, "cannot be spread over 8 devices"),
    ({"environment__size": 5, "environment__boxes": 3}, ValueError, r"environment\.boxes=3"),
    ({"reward__weights": {"tool": {"format": 1.0, "jump": 1.0}, "planner": {"format": 1.0}}},
     ValueError, "jump"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "kind", "words"), BAD)
def test_what_cannot_run_is_one_line(tmp_path, changes, kind, words):
    with pytest.raises(kind, match=words) as error:
        train.run(small(**changes), str(tmp_path / "run"))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run/metrics.jsonl").exists() or not rows(tmp_path / "run")


def test_two_processes_do_not_share_a_workdir(tmp_path):
    config = small()
    (tmp_path / "run").mkdir()
    with owned(tmp_path / "run"), pytest.raises(OSError, match="in use by another process"):
        train.run(config, str(tmp_path / "run"))


def test_a_workdir_of_another_config_is_left_alone(tmp_path):
    train.run(small(), str(tmp_path / "run"))
    before = rows(tmp_path / "run")
    with pytest.raises(ConfigError, match="another config .*steps: 2 there, 3 here"):
        train.run(small(steps=3), str(tmp_path / "run"))
    assert rows(tmp_path / "run") == before


def evaluated(workdir, *flags):
    return subprocess.run(
        [sys.executable, "launch/evaluate.py", f"--workdir={workdir}", "--episodes=12", *flags],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_evaluate_plays_any_checkpoint_and_swaps_roles(tmp_path):
    train.run(small(policies="per_role", mesh__data=8), str(tmp_path / "run"))
    files = sorted((tmp_path / "run/checkpoints").rglob("*"))
    plain = json.loads(evaluated(tmp_path / "run").stdout.splitlines()[-1])
    assert (plain["step"], plain["evaluate/episodes"], plain["swapped"]) == (2, 12, False)
    swapped = json.loads(evaluated(tmp_path / "run", "--swap_roles").stdout.splitlines()[-1])
    assert swapped["swapped"]
    assert swapped["evaluate/tool/listed"] != plain["evaluate/tool/listed"]
    start = json.loads(evaluated(tmp_path / "run", "--checkpoint=start").stdout.splitlines()[-1])
    assert start["step"] == 0
    assert sorted((tmp_path / "run/checkpoints").rglob("*")) == files


def test_roles_of_one_policy_cannot_be_swapped(finished, tmp_path):
    root, _ = finished
    for workdir, words in ((root / "whole", "policies=per_role"), (tmp_path, "config.json")):
        done = evaluated(workdir, "--swap_roles")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert words in done.stderr
