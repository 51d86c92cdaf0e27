"""Plan-Path, 10x10 with obstacles: a planner and a tool agent, trained from a tiny policy.

Command   python launch/train.py --config=configs/plan_path.py --workdir=runs/plan_path
Smoke     python launch/train.py --config=configs/plan_path.py:smoke --workdir=runs/smoke
Hardware  any; float32
Time      about 25 minutes on 2 CPU cores
Expected  held-out success .41 before, .80 after 100 steps (1024 boards; see README.md)
"""

from ml_collections import config_dict

from atgrpo_jax.config import ConfigError
from configs import common
from configs.sokoban import VARIANTS, shrink


def get_config(variant: str = "") -> config_dict.ConfigDict:
    """The recipe above, or its `smoke` variant: a few small steps that show that all of it runs."""
    if variant not in VARIANTS:
        raise ConfigError(f"configs/plan_path.py:{variant} is no variant; use none or smoke")
    config = common.get_config()
    config.steps = 150
    config.environment.name = "plan_path"
    config.environment.size = 10
    config.environment.boxes = 0
    config.environment.wall_rate = 0.22
    config.model.path = "assets/tiny_plan_path"
    config.reward.weights = common.role_weights(common.PLAN_PATH_PLANNER, common.PLAN_PATH_TOOL)
    return shrink(config) if variant == "smoke" else config
