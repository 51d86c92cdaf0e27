"""Environments by name: what makes each of them from a config."""

from __future__ import annotations

from atgrpo_jax.config import EnvironmentConfig
from environments.game import GameTask
from environments.plan_path.env import PlanPath
from environments.plan_path.types import PlanPathConfig
from environments.sokoban.env import Sokoban
from environments.sokoban.types import SokobanConfig


def make_game(settings: EnvironmentConfig) -> Sokoban | PlanPath:
    """The game of these settings. Raises ValueError for a board that cannot be made."""
    if settings.name == "sokoban":
        return Sokoban(SokobanConfig(settings.size, settings.boxes, settings.wall_rate))
    if settings.name == "plan_path":
        return PlanPath(PlanPathConfig(settings.size, settings.wall_rate))
    raise ValueError(f"environment.name={settings.name!r} is unknown; use sokoban or plan_path")


def make_task(settings: EnvironmentConfig) -> GameTask:
    """The game as a Task with text in and text out."""
    return GameTask(make_game(settings), settings.rendering, settings.max_moves)
