"""Small run configs for tests, made from the shipped defaults."""

from atgrpo_jax.config import RunConfig, from_dict
from configs import common


def small(**changes) -> RunConfig:
    """The default config with `group__field=value` changes; 6 environments, 4 branches, 3 turns."""
    loose = common.get_config().to_dict()
    defaults = {
        "rollout__environments": 6,
        "rollout__branches": 4,
        "rollout__turns": 3,
        "rollout__random_advance": 0.0,
        "rollout__max_new_tokens": 8,
        "rollout__max_failure_rate": 1.0,
        "update__keep": 0,
        "log__trees": 2,
        "log__trees_every": 1,
    }
    return changed(loose, {**defaults, **changes})


def changed(loose: dict, changes: dict) -> RunConfig:
    """The config of `loose` with `group__field: value` changes; `loose` is changed."""
    for name, value in changes.items():
        *path, last = name.split("__")
        target = loose
        for part in path:
            target = target[part]
        target[last] = value
    return from_dict(loose)


def toy(**changes) -> RunConfig:
    """`small`, with the toy task's reward weights for whatever roles it has."""
    from dataclasses import replace

    config = small(**changes)
    roles = ("left", "right", "solo", "first", "second")
    weights = {role: {"match": 1.0} for role in roles}
    return replace(config, reward=replace(config.reward, weights=weights))
