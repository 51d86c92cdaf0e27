"""Plays held-out boards with a run's policies: python launch/evaluate.py --workdir=DIR.

The last line is one JSON object of metrics; docs/metrics.md defines each name.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from absl import flags  # noqa: E402

from atgrpo_jax.checkpoint import Checkpoints  # noqa: E402
from atgrpo_jax.command import launch  # noqa: E402
from atgrpo_jax.config import ConfigError, RunConfig, load_config  # noqa: E402
from atgrpo_jax.evaluate import evaluate  # noqa: E402
from atgrpo_jax.mesh import make_mesh  # noqa: E402
from atgrpo_jax.policy import swap  # noqa: E402
from atgrpo_jax.samplers.registry import make_sampler  # noqa: E402
from atgrpo_jax.team import Team, build_team, put_state, state_of  # noqa: E402
from atgrpo_jax.workflows import WORKFLOWS  # noqa: E402
from environments.registry import make_task  # noqa: E402

WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the run.")
EPISODES = flags.DEFINE_integer("episodes", 1024, "Held-out boards.", lower_bound=1)
SEED = flags.DEFINE_integer("seed", 0, "Which held-out boards and draws.", lower_bound=0)
TEMPERATURE = flags.DEFINE_float(
    "temperature", None, "0: the likeliest token; unset: the config's.", lower_bound=0.0
)
CHECKPOINT = flags.DEFINE_enum(
    "checkpoint", "latest", ["latest", "best", "start"], "start: before any training."
)
SWAP_ROLES = flags.DEFINE_bool("swap_roles", False, "Gives every agent the next one's policy.")


def restore(team: Team, config: RunConfig) -> int:
    """Puts the wanted checkpoint into `team`; returns how many training steps it has seen."""
    if CHECKPOINT.value == "start":
        return 0
    with Checkpoints(WORKDIR.value, config.checkpoint.keep, read_only=True) as checkpoints:
        read = {"latest": checkpoints.restore_latest, "best": checkpoints.restore_best}
        found = read[CHECKPOINT.value](state_of(team))
    if found is None:
        raise ConfigError(f"{WORKDIR.value} has no {CHECKPOINT.value} checkpoint yet; train first")
    put_state(team, found[1])
    return found[0]


def main() -> None:
    """Restores, plays, prints."""
    if not WORKDIR.value:
        raise ConfigError("give --workdir=DIR, the directory of a run")
    config = load_config(WORKDIR.value)
    workflow = WORKFLOWS[config.workflow]
    mesh = make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    team = build_team(config, workflow, mesh)
    router = swap(team.router) if SWAP_ROLES.value else team.router
    step = restore(team, config)
    temperature = config.evaluate.temperature if TEMPERATURE.value is None else TEMPERATURE.value
    task = make_task(config.environment)
    sampler = make_sampler(config, mesh)
    metrics = evaluate(
        task, workflow, team.policies, router, sampler, config,
        episodes=EPISODES.value, temperature=temperature, seed=SEED.value,
    )  # fmt: skip
    about = {"step": step, "seed": SEED.value, "temperature": temperature}
    print(readable(step, metrics))
    rounded = {name: round(value, 6) for name, value in metrics.items()}
    print(json.dumps(about | {"swapped": SWAP_ROLES.value} | rounded))


def readable(step: int, metrics: dict[str, float]) -> str:
    """The metrics for people, a line each."""
    lines = [f"{CHECKPOINT.value} checkpoint, {step} steps of training"]
    for name, value in metrics.items():
        lines.append(f"  {name.removeprefix('evaluate/'):24s} {value:9.4g}")
    return "\n".join(lines)


if __name__ == "__main__":
    launch(main, lambda: None)
