"""Speeds on this machine: environments, sampler, update, and the split of a training step.

python benchmarks/throughput.py --config=configs/sokoban.py

Each number is the best of `--repeats` runs after a warm-up. "Shared" computes the prompt of a group
once for its K branches; "separate" computes it for every branch, as most trainers do.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from absl import flags  # noqa: E402
from ml_collections import config_flags  # noqa: E402

from atgrpo_jax.command import launch  # noqa: E402
from atgrpo_jax.config import RunConfig, from_config_dict  # noqa: E402
from atgrpo_jax.mesh import make_mesh  # noqa: E402
from atgrpo_jax.rng import keys  # noqa: E402
from atgrpo_jax.rollout import tree  # noqa: E402
from atgrpo_jax.rollout.branch import ask  # noqa: E402
from atgrpo_jax.samplers.base import Sampler  # noqa: E402
from atgrpo_jax.samplers.registry import make_sampler  # noqa: E402
from atgrpo_jax.team import build_team, learn, routed  # noqa: E402
from atgrpo_jax.workflows import WORKFLOWS  # noqa: E402
from environments.registry import make_task  # noqa: E402

CONFIG = config_flags.DEFINE_config_file("config", "configs/sokoban.py", "configs/TASK.py")
REPEATS = flags.DEFINE_integer("repeats", 3, "Timed runs of each.", lower_bound=1)
BOARDS = flags.DEFINE_integer("boards", 4096, "Boards of the environment's test.", lower_bound=1)


def best(run: Callable[[], Any]) -> float:
    """Seconds of the fastest run, after one that compiles."""
    run()
    times = []
    for _ in range(REPEATS.value):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def environment(config: RunConfig) -> None:
    """Boards made and moves made a second, all boards at once."""
    game = make_task(config.environment).game
    seeds = jax.random.split(jax.random.key(0), BOARDS.value)
    make = jax.jit(jax.vmap(game.reset_split, (0, None)))
    boards = make(seeds, False)
    moves = jax.random.randint(jax.random.key(1), (BOARDS.value, 100), 0, 4)

    @jax.jit
    @jax.vmap
    def walk(board: Any, row: jax.Array) -> Any:
        return jax.lax.scan(lambda now, move: (game.move(now, move), None), board, row)[0]

    seconds = best(lambda: jax.block_until_ready(make(seeds, False)))
    print(f"boards made       {BOARDS.value / seconds:12,.0f} a second")
    seconds = best(lambda: jax.block_until_ready(walk(boards, moves)))
    print(f"environment steps {moves.size / seconds:12,.0f} a second")


def sampling(config: RunConfig, team: Any, sampler: Sampler) -> None:
    """Sampled tokens a second, prompts shared by the branches of a group or not."""
    settings, task = config.rollout, make_task(config.environment)
    workflow = WORKFLOWS[config.workflow]
    ids, agent = np.arange(settings.environments), workflow.agents[0]
    policy = team.policies[team.router[agent.name]]
    state = task.reset(keys(0, "level", 0, 0, ids), False)
    draws = keys(0, "branch", 0, ids[:, None], 0, 0, np.arange(settings.branches))
    alone = task.repeat(state, settings.branches)
    counts = {}

    def run(name: str, state: Any, draws: np.ndarray) -> None:
        asked = ask(
            task, state, agent, 0, np.arange(len(draws)), policy, sampler, draws,
            temperature=settings.temperature, max_new_tokens=settings.max_new_tokens,
        )  # fmt: skip
        counts[name] = int(asked.samples.mask_BxKxR.sum())

    shared = best(lambda: run("shared", state, draws))
    separate = best(lambda: run("separate", alone, draws.reshape(-1, 1, 2)))
    print(f"sampler, shared   {counts['shared'] / shared:12,.0f} tokens a second")
    print(f"sampler, separate {counts['separate'] / separate:12,.0f} tokens a second")
    print(f"  sharing is {separate / shared:.2f} times as fast")


def updating(config: RunConfig) -> None:
    """Response tokens learned from a second, and the split of a step."""
    workflow = WORKFLOWS[config.workflow]
    mesh = make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    task = make_task(config.environment)
    sampler = make_sampler(config, mesh)
    team = build_team(config, workflow, mesh)
    sampling(config, team, sampler)
    seconds, tokens = {}, 0.0
    for name, shares in (("shared", True), ("separate", False)):
        chosen = replace(config, update=replace(config.update, share_prompt=shares))
        team = build_team(chosen, workflow, mesh)
        roll = lambda team=team: tree.rollout(  # noqa: E731
            task, workflow, team.policies, team.router, sampler, config, 0
        )
        rollout = roll()
        policy = team.policies[team.router[workflow.agents[0].name]]
        records = routed(team, rollout, policy.name)

        def run(team: Any = team, policy: Any = policy, records: Any = records) -> None:
            policy.version = 0
            learn(team, policy, records, chosen, workflow)  # noqa: B023

        seconds[name] = best(run)
        tokens = float(sum(record.mask_BxKxR.sum() for record in records))
        if shares:
            policy.version = 0
            whole = best(roll)
            inner = rollout_split(roll)
    print(f"update, shared    {tokens / seconds['shared']:12,.0f} sampled tokens a second")
    print(f"update, separate  {tokens / seconds['separate']:12,.0f} sampled tokens a second")
    print(f"  sharing is {seconds['separate'] / seconds['shared']:.2f} times as fast")
    total = whole + seconds["shared"]
    print(f"a step of {config.rollout.environments} boards: {total:.2f} s")
    for name, part in (*inner.items(), ("update", seconds["shared"])):
        print(f"  {name:12s} {part:6.2f} s  {100 * part / total:3.0f} %")


def rollout_split(roll: Callable[[], Any]) -> dict[str, float]:
    """Seconds of one rollout spent in the sampler and in the environment with its scoring."""
    found = roll().statistics
    return {name: found[f"seconds/{name}"] for name in ("sample", "environment")}


def main() -> None:
    """Prints a table."""
    config = from_config_dict(CONFIG.value)
    devices = jax.devices()
    print(f"{len(devices)} x {devices[0].device_kind}, {CONFIG.value.environment.name}, "
          f"{jnp.dtype(config.model.compute_dtype)}")  # fmt: skip
    environment(config)
    updating(config)


if __name__ == "__main__":
    launch(main, lambda: None)
