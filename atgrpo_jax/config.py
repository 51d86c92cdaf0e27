"""The one border between the loose config of configs/ and the program: strict frozen records.

Nothing here has a default; configs/common.py has them all.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from ml_collections import ConfigDict

from atgrpo_jax.advantages import SCALES
from atgrpo_jax.algorithms import ALGORITHMS, MODES
from atgrpo_jax.files import replace_text
from atgrpo_jax.workflows import WORKFLOWS

DTYPES = ("float32", "bfloat16")
# Of each game: smallest and largest size, fewest and most boxes.
GAMES = {"sokoban": (5, 10, 1, 4), "plan_path": (2, 10, 0, 0)}


class ConfigError(ValueError):
    """A config that cannot be run; one line that names the field, its value and what to do."""


def number(low: float, high: float = math.inf, above: bool = False, below: bool = False) -> Any:
    """A field from low to high; `above` and `below` leave the bound itself out."""
    return field(metadata={"range": (low, high, above, below)})


def choice(*names: str) -> Any:
    """A field that is one of `names`."""
    return field(metadata={"choices": names})


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig:
    """The game and how it is shown."""

    name: str = choice(*GAMES)
    size: int = number(2, 10)
    boxes: int = number(0, 4)
    wall_rate: float = number(0.0, 0.5)
    max_moves: int = number(1, 100)
    rendering: str = choice("compact", "grid")


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Where policies start from, and how they compute."""

    path: str
    param_dtype: str = choice(*DTYPES)
    compute_dtype: str = choice(*DTYPES)
    remat: str = choice("none", "dots", "full")
    scan: bool
    thinking: bool


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """What is sampled at each step. A group of one member has no contrast, so K >= 2."""

    environments: int = number(1)
    branches: int = number(2)
    turns: int = number(1)
    mode: str | None = choice(*MODES)
    temperature: float = number(0.0, 10.0, above=True)
    max_new_tokens: int = number(1)
    prompt_tokens: int = number(1)
    sequences: int = number(1)
    advance: str = choice("greedy", "sampled", "first")
    random_advance: float = number(0.0, 1.0)
    max_failure_rate: float = number(0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """alpha and c_l of Eq. 3; weights: role -> part -> c_l >= 0."""

    alpha: float = number(0.0)
    weights: dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class AdvantageConfig:
    """Eq. 1."""

    scale: str = choice(*SCALES)
    leave_one_out: bool
    tolerance: float = number(0.0)


@dataclass(frozen=True, kw_only=True)
class UpdateConfig:
    """Loss (Eq. 2), batches and optimizer."""

    learning_rate: float = number(0.0)
    warmup_steps: int = number(0)
    schedule: str = choice("constant", "cosine", "linear")
    final_fraction: float = number(0.0, 1.0)
    weight_decay: float = number(0.0)
    beta1: float = number(0.0, 1.0, below=True)
    beta2: float = number(0.0, 1.0, below=True)
    clip_norm: float = number(0.0, above=True)
    clip_low: float = number(0.0, 1.0, above=True)
    clip_high: float = number(0.0, above=True)
    epochs: int = number(1)
    minibatches: int = number(1)
    micro_batch: int = number(1)
    keep: int = number(0)
    entropy: float = number(0.0)
    kl: float = number(0.0)
    aggregation: str = choice("token", "sequence", "constant")
    share_prompt: bool


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Devices along each axis; -1 is what the others leave."""

    data: int = number(-1)
    fsdp: int = number(-1)
    tensor: int = number(-1)


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Held-out evaluation; temperature 0 takes the likeliest token."""

    every: int = number(0)
    episodes: int = number(1)
    final_episodes: int = number(1)
    temperature: float = number(0.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """How often, and how many of the newest are kept."""

    every: int = number(0)
    keep: int = number(1)


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Sampled trees written for the viewer."""

    trees: int = number(0)
    trees_every: int = number(0)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole run."""

    seed: int = number(0, 2**63 - 1)
    steps: int = number(1)
    sampled_tokens: int = number(0)
    algorithm: str = choice(*ALGORITHMS)
    workflow: str = choice(*WORKFLOWS)
    policies: str = choice("shared", "per_role")
    sampler: str = choice("jax")
    environment: EnvironmentConfig
    model: ModelSource
    rollout: RolloutConfig
    reward: RewardConfig
    advantage: AdvantageConfig
    update: UpdateConfig
    mesh: MeshConfig
    evaluate: EvaluateConfig
    checkpoint: CheckpointConfig
    log: LogConfig


def from_config_dict(loose: ConfigDict) -> RunConfig:
    """The strict config. Raises ConfigError: unknown or missing key, wrong type, out of range."""
    return from_dict(loose.to_dict())


def from_dict(loose: Mapping[str, Any]) -> RunConfig:
    """As from_config_dict, of plain nested dictionaries (config.json)."""
    config = _record(RunConfig, loose, "")
    _check_together(config)
    return config


def _record(cls: Any, loose: Any, path: str) -> Any:
    """An instance of the dataclass `cls`, every field checked."""
    if not isinstance(loose, Mapping):
        raise ConfigError(f"config.{path}={loose!r} is no group of fields; give its fields")
    prefix = f"{path}." if path else ""
    names = [item.name for item in fields(cls)]
    for key in loose:
        if key not in names:
            raise ConfigError(f"config.{prefix}{key} is unknown; use one of {', '.join(names)}")
    hints, values = get_type_hints(cls), {}
    for item in fields(cls):
        name = prefix + item.name
        if item.name not in loose:
            raise ConfigError(f"config.{name} is missing; give it, configs/common.py has a default")
        values[item.name] = _value(hints[item.name], item.metadata, loose[item.name], name)
    return cls(**values)


def _value(hint: Any, allowed: Mapping[str, Any], value: Any, name: str) -> Any:
    """`value` as the type `hint`; never a bool for a number, nor a float for an int."""
    if is_dataclass(hint):
        return _record(hint, value, name)
    if hint == dict[str, dict[str, float]]:
        return _weights(value, name)
    if hint == str | None:
        if value is None:
            return None
        hint = str
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:
        raise ConfigError(f"config.{name}={value!r} is {_kind(value)}; give {NOUNS[hint]}")
    if "choices" in allowed and value not in allowed["choices"]:
        raise ConfigError(f"config.{name}={value!r}: use one of {', '.join(allowed['choices'])}")
    if "range" in allowed:
        _check_range(value, allowed["range"], name)
    if value == "":
        raise ConfigError(f"config.{name} is empty; give a value")
    return value


NOUNS = {int: "a whole number", float: "a number", str: "a string", bool: "True or False"}


def _kind(value: Any) -> str:
    return NOUNS.get(type(value), "unset" if value is None else f"a {type(value).__name__}")


def _check_range(value: float, bounds: tuple[float, float, bool, bool], name: str) -> None:
    """Raises ConfigError for NaN, infinities and what lies outside the bounds."""
    low, high, above, below = bounds
    inside = (value > low if above else value >= low) and (value < high if below else value <= high)
    if math.isfinite(value) and inside:
        return
    lower = f"{'above' if above else 'at least'} {low:g}"
    upper = "" if high == math.inf else f" and {'below' if below else 'at most'} {high:g}"
    raise ConfigError(f"config.{name}={value!r}: use a finite number, {lower}{upper}")


def _weights(loose: Any, path: str) -> dict[str, dict[str, float]]:
    """Role -> part -> weight. Which parts a task has, rewards.check_weights knows."""
    roles = {agent.name for workflow in WORKFLOWS.values() for agent in workflow.agents}
    if not isinstance(loose, Mapping):
        raise ConfigError(f"config.{path}={loose!r}: give a weight for each role and part")
    for role, parts in loose.items():
        if role not in roles:
            raise ConfigError(f"config.{path}.{role} is no role; use {', '.join(sorted(roles))}")
        if not isinstance(parts, Mapping):
            raise ConfigError(f"config.{path}.{role}={parts!r}: give a weight for each part")
    limits = {"range": (0.0, math.inf, False, False)}
    return {
        role: {
            part: _value(float, limits, value, f"{path}.{role}.{part}")
            for part, value in parts.items()
        }
        for role, parts in loose.items()
    }


def _check_together(config: RunConfig) -> None:
    """What one field allows another."""
    environment, rollout = config.environment, config.rollout
    smallest, largest, fewest, most = GAMES[environment.name]
    if not smallest <= environment.size <= largest:
        raise ConfigError(
            f"config.environment.size={environment.size}: "
            f"{environment.name} takes {smallest} to {largest}"
        )
    if not fewest <= environment.boxes <= most:
        allowed = f"{fewest} to {most}" if fewest < most else f"{fewest}"
        raise ConfigError(
            f"config.environment.boxes={environment.boxes}: {environment.name} takes {allowed} "
            f"(configs/{environment.name}.py sets it)"
        )
    if config.update.keep > rollout.branches:
        raise ConfigError(
            f"config.update.keep={config.update.keep} is more than "
            f"config.rollout.branches={rollout.branches}; lower it, or 0 to keep all"
        )
    sizes = asdict(config.mesh)
    if 0 in sizes.values() or list(sizes.values()).count(-1) > 1:
        raise ConfigError(f"config.mesh={sizes}: give sizes of 1 or more, at most one of them -1")
    for agent in WORKFLOWS[config.workflow].agents:
        if agent.name not in config.reward.weights:
            raise ConfigError(
                f"config.reward.weights.{agent.name} is missing; "
                f"workflow {config.workflow} has that role"
            )


def to_json(config: RunConfig) -> str:
    """config.json's text; from_dict(json.loads(it)) == config."""
    return json.dumps(asdict(config), indent=2) + "\n"


def fingerprint(config: RunConfig) -> str:
    """Equal for equal configs alone: hex digest of all fields, whatever their order."""
    return _digest(asdict(config))


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def load_config(workdir: str) -> RunConfig:
    """The config of the run in `workdir`. Raises ConfigError if it holds none."""
    return from_dict(_stored(Path(workdir) / "config.json"))


def _stored(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; give the --workdir of a run") from None
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); give another --workdir") from None


def claim_workdir(workdir: str, config: RunConfig) -> None:
    """Makes `workdir` this config's: writes config.json at once or not at all.

    Raises ConfigError if it holds a run of another config, or a run without its config.json.
    """
    root = Path(workdir)
    path = root / "config.json"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--workdir={workdir} cannot be made ({error.strerror})") from None
    if path.exists():
        old = _stored(path)
        if _digest(old) != fingerprint(config):
            changed = _difference(old, json.loads(to_json(config)))
            raise ConfigError(
                f"{workdir} holds a run of another config ({changed}); "
                "give another --workdir or the same config"
            )
        return
    for name in ("metrics.jsonl", "checkpoints"):
        if (root / name).exists():
            raise ConfigError(f"{workdir} holds {name} but no config.json; give another --workdir")
    replace_text(path, to_json(config))


def _difference(old: Any, new: Any) -> str:
    """The first field that differs, and how many do."""
    before, after = _leaves(old, "config"), _leaves(new, "config")
    names = [name for name in {**after, **before} if before.get(name, "-") != after.get(name, "-")]
    name = names[0]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{name}: {before.get(name, 'absent')} there, {after.get(name, 'absent')} here{more}"


def _leaves(values: Any, path: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        return {path: values}
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _leaves(value, f"{path}.{key}")
    return found
