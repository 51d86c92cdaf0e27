"""The config border: what is accepted, what is refused and in which words."""

import ast
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags
from ml_collections import ConfigDict, FrozenConfigDict, config_flags

from atgrpo_jax import config as border
from atgrpo_jax.config import ConfigError, claim_workdir, from_config_dict, from_dict
from configs import common, plan_path, sokoban

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = [module.get_config(v) for module in (sokoban, plan_path) for v in module.VARIANTS]


def leaves(values, path=()):
    for key, value in values.items():
        if isinstance(value, ConfigDict | dict):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def changed(path, value, base=sokoban):
    loose = base.get_config().to_dict()
    holder = loose
    for key in path.split(".")[:-1]:
        holder = holder[key]
    holder[path.split(".")[-1]] = value
    return loose


@pytest.mark.parametrize("loose", SHIPPED)
def test_shipped_configs_are_valid_and_survive_freezing_copying_and_json(loose):
    strict = from_config_dict(loose)
    assert from_config_dict(FrozenConfigDict(loose)) == strict
    assert from_config_dict(loose.copy_and_resolve_references()) == strict
    assert from_dict(json.loads(border.to_json(strict))) == strict


@pytest.mark.parametrize("loose", SHIPPED)
def test_optional_fields_are_typed_placeholders_and_keys_are_strings(loose):
    for path, value in leaves(loose):
        assert all(isinstance(key, str) for key in path)
        assert type(value) in (int, float, str, bool) or path == ("rollout", "mode")
    assert loose.rollout.get_type("mode") is str


def test_records_mirror_the_document():
    strict = dataclasses.asdict(from_config_dict(common.get_config()))
    assert sorted(p for p, _ in leaves(strict)) == sorted(p for p, _ in leaves(common.get_config()))


def test_defaults_of_the_tasks_fit_together():
    one, two = from_config_dict(sokoban.get_config()), from_config_dict(plan_path.get_config())
    assert (one.environment.size, one.environment.boxes, one.environment.wall_rate) == (6, 1, 0.15)
    assert (two.environment.size, two.environment.boxes, two.environment.wall_rate) == (10, 0, 0.22)
    for run in (one, two):
        assert run.evaluate.final_episodes == 1024
        assert run.evaluate.temperature == 1.0
        # The longest list, its brackets included.
        assert run.rollout.max_new_tokens == run.environment.max_moves + 2
        assert run.reward.weights["solo"] == run.reward.weights["planner"]
        for parts in run.reward.weights.values():
            assert sum(parts.values()) == pytest.approx(1.0)


def test_every_leaf_can_be_overridden_from_the_command_line(monkeypatch):
    for path, value in leaves(sokoban.get_config()):
        new = {bool: "False", int: "7", float: "0.5", str: "seven"}[
            str if value is None else type(value)
        ]
        argv = ["x", f"--config={ROOT}/configs/sokoban.py", f"--config.{'.'.join(path)}={new}"]
        monkeypatch.setattr(sys, "argv", argv)  # config_flags finds the overrides there
        holder = flags.FlagValues()
        config_flags.DEFINE_config_file("config", flag_values=holder)
        holder(argv)
        read = holder.config.to_dict()
        for key in path:
            read = read[key]
        assert str(read) == new, path


WRONG = [
    ("steps", 5.0, "a whole number"),
    ("steps", True, "a whole number"),
    ("steps", "ten", "a whole number"),
    ("steps", 0, "at least 1"),
    ("seed", -1, "at least 0"),
    ("update.learning_rate", float("nan"), "finite"),
    ("update.learning_rate", float("inf"), "finite"),
    ("update.learning_rate", -1e-4, "at least 0"),
    ("update.learning_rate", True, "a number"),
    ("update.beta2", 1.0, "below 1"),
    ("update.clip_norm", 0.0, "above 0"),
    ("update.share_prompt", 1, "True or False"),
    ("update.keep", 17, "config.rollout.branches=16"),
    ("update.schedule", "step", "constant, cosine, linear"),
    ("rollout.branches", 1, "at least 2"),
    ("rollout.temperature", 0.0, "above 0"),
    ("rollout.mode", "forest", "tree, parallel"),
    ("rollout.random_advance", 1.5, "at most 1"),
    ("rollout.max_failure_rate", -0.1, "at least 0"),
    ("model.path", "", "empty"),
    ("model.path", None, "a string"),
    ("model.param_dtype", "float16", "float32, bfloat16"),
    ("algorithm", "ppo", "at_grpo, grpo"),
    ("workflow", "trio", "planner_tool, solo"),
    ("environment.name", "chess", "sokoban, plan_path"),
    ("environment.size", 3, "sokoban takes 5 to 10"),
    ("environment.boxes", 0, "sokoban takes 1 to 4"),
    ("mesh.fsdp", 0, "1 or more"),
    ("mesh.fsdp", -1, "at most one"),
    ("mesh", 8, "no group of fields"),
    ("reward.weights.tool.format", -0.1, "at least 0"),
    ("reward.weights.tool.format", "much", "a number"),
    ("reward.weights.critic", {}, "no role"),
    ("reward.weights.tool", 1.0, "each part"),
    ("reward.weights", {"solo": {"format": 1.0}}, "reward.weights.tool is missing"),
    ("typo", 3, "unknown"),
    ("update.typo", 3, "unknown"),
]


@pytest.mark.parametrize(("path", "value", "words"), WRONG)
def test_wrong_values_are_refused_in_one_line_that_names_the_field(path, value, words):
    with pytest.raises(ConfigError) as caught:
        from_dict(changed(path, value))
    text = str(caught.value)
    assert words in text
    assert "\n" not in text
    assert f"config.{path.split('.')[0]}" in text


def test_a_missing_field_is_refused():
    loose = sokoban.get_config().to_dict()
    del loose["rollout"]["turns"]
    with pytest.raises(ConfigError, match=r"config\.rollout\.turns is missing"):
        from_dict(loose)


def test_a_whole_number_serves_a_float_field():
    learning_rate = from_dict(changed("update.learning_rate", 1)).update.learning_rate
    assert learning_rate == 1.0
    assert type(learning_rate) is float


def test_every_field_changes_the_fingerprint():
    base = from_config_dict(sokoban.get_config())
    seen = {border.fingerprint(base)}
    stored = json.loads(border.to_json(base))
    for path, value in leaves(stored):
        copy = json.loads(border.to_json(base))
        holder = copy
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = [value, "changed"]
        seen.add(border._digest(copy))
    assert len(seen) == 1 + len(list(leaves(stored)))


def test_fingerprint_ignores_the_order_of_keys():
    loose = sokoban.get_config().to_dict()
    turned = dict(reversed(loose.items()))
    weights = dict(reversed(loose["reward"]["weights"].items()))
    turned["reward"] = {"weights": weights, "alpha": loose["reward"]["alpha"]}
    assert border.fingerprint(from_dict(loose)) == border.fingerprint(from_dict(turned))


def test_a_workdir_is_claimed_once_and_resumed_by_the_same_config(tmp_path):
    workdir, config = str(tmp_path / "a" / "run"), from_config_dict(sokoban.get_config())
    claim_workdir(workdir, config)
    claim_workdir(workdir, config)
    assert border.load_config(workdir) == config
    assert os.listdir(workdir) == ["config.json"]


def test_a_workdir_of_another_config_is_refused_and_left_alone(tmp_path):
    config = from_config_dict(sokoban.get_config())
    claim_workdir(str(tmp_path), config)
    before = (tmp_path / "config.json").read_bytes()
    other = dataclasses.replace(config, steps=7)
    with pytest.raises(ConfigError, match=r"config\.steps: \d+ there, 7 here") as caught:
        claim_workdir(str(tmp_path), other)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "config.json").read_bytes() == before


def test_a_workdir_without_or_with_a_broken_config_json_is_refused(tmp_path):
    config = from_config_dict(sokoban.get_config())
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigError, match="no config.json"):
        claim_workdir(str(tmp_path), config)
    (tmp_path / "config.json").write_text('{"seed": ')
    with pytest.raises(ConfigError, match="cannot be read"):
        claim_workdir(str(tmp_path), config)


def test_a_kill_while_claiming_leaves_no_half_written_config(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("atgrpo_jax.files.os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        claim_workdir(str(tmp_path), from_config_dict(sokoban.get_config()))
    assert not (tmp_path / "config.json").exists()


COMMANDS = [
    ("--config.typo=3", "no such config field: typo"),
    ("--config.update.typo=3", "no such config field: typo"),
    ("--config.steps=1e3", "--config.steps=1e3"),
    ("--config.update.learning_rate=nan", "config.update.learning_rate=nan"),
]


def launch(tmp_path, *arguments):
    return subprocess.run(
        [sys.executable, "launch/train.py", f"--workdir={tmp_path}/run", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize(("flag", "words"), COMMANDS)
def test_the_command_fails_before_anything_is_made(tmp_path, flag, words):
    done = launch(tmp_path, "--config=configs/sokoban.py:smoke", flag)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_an_unknown_variant_is_one_line(tmp_path):
    done = launch(tmp_path, "--config=configs/plan_path.py:big")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: configs/plan_path.py:big is no variant")


def test_every_field_is_read_by_something():
    read = set()
    for folder in ("atgrpo_jax", "environments", "launch"):
        for file in (ROOT / folder).rglob("*.py"):
            if file.name != "config.py":
                nodes = ast.walk(ast.parse(file.read_text()))
                read |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names = {path[-1] for path, _ in leaves(common.get_config())}
    weights = {part for parts in common.get_config().reward.weights.values() for part in parts}
    assert names - weights - read == set()
