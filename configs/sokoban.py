"""Sokoban, 6x6 with one box: a planner and a tool agent, trained from a tiny policy.

Command   python launch/train.py --config=configs/sokoban.py --workdir=runs/sokoban
Smoke     python launch/train.py --config=configs/sokoban.py:smoke --workdir=runs/smoke
Hardware  any; float32
Time      about 23 minutes on 2 CPU cores (4.8 s a step)
Expected  held-out success .50 before, .86 after (1024 boards; see README.md)
"""

from ml_collections import config_dict

from atgrpo_jax.config import ConfigError
from configs import common

VARIANTS = ("", "smoke")


def get_config(variant: str = "") -> config_dict.ConfigDict:
    """The recipe above, or its `smoke` variant: a few small steps that show that all of it runs."""
    if variant not in VARIANTS:
        raise ConfigError(f"configs/sokoban.py:{variant} is no variant; use none or smoke")
    config = common.get_config()
    return shrink(config) if variant == "smoke" else config


def shrink(config: config_dict.ConfigDict) -> config_dict.ConfigDict:
    """Makes `config` small: two steps, about two minutes on two cores, most of it compiling."""
    config.steps = 2
    config.rollout.environments = 8
    config.rollout.branches = 4
    config.rollout.turns = 2
    config.update.keep = 0
    config.update.micro_batch = 8
    config.evaluate.every = 0
    config.evaluate.episodes = 8
    config.evaluate.final_episodes = 16
    config.checkpoint.every = 1
    config.log.trees_every = 1
    return config
