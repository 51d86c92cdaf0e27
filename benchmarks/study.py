"""Algorithms at equal numbers of sampled tokens: a run an arm and seed, and a table.

python benchmarks/study.py --task=sokoban --tokens=1500000 --out=runs/study

Arms: the team by AT-GRPO and by GRPO, the single agent by GRPO, and the team with a policy for each
role, also played with its two policies swapped. Each run is launch/train.py with its own workdir
under --out, so a study that was stopped goes on where it was. `--jobs` runs share the cores.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from absl import flags  # noqa: E402

from atgrpo_jax.command import launch  # noqa: E402
from atgrpo_jax.evaluate import wilson  # noqa: E402
from atgrpo_jax.files import read_lines  # noqa: E402

TASK = flags.DEFINE_enum("task", "sokoban", ["sokoban", "plan_path"], "configs/TASK.py")
TOKENS = flags.DEFINE_integer("tokens", 1_500_000, "Sampled tokens of each run.", lower_bound=1)
SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds of each arm.")
OUT = flags.DEFINE_string("out", "runs/study", "Directory of the runs and of results.json.")
JOBS = flags.DEFINE_integer("jobs", 2, "Runs at once, each on its share of the cores.")
FIELDS = flags.DEFINE_list("fields", [], "NAME=VALUE of config fields, the same for every arm.")
CHOSEN = flags.DEFINE_list("arms", [], "Only these arms; empty: all.")

ARMS = {
    "at_grpo": {},
    "grpo": {"algorithm": "grpo"},
    "solo_grpo": {"algorithm": "grpo", "workflow": "solo"},
    "solo_at_grpo": {"workflow": "solo"},
    "at_grpo_per_role": {"policies": "per_role"},
}


def call(arguments: list[str], log: Path, cores: set[int]) -> str:
    """Runs one launch script; returns what it printed. Raises RuntimeError if it failed."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )  # fmt: skip
    log.write_text(done.stdout)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed; see {log}")
    return done.stdout


def run_arm(arm: str, seed: str, cores: set[int]) -> dict[str, object]:
    """Trains one arm with one seed; its first and last held-out scores."""
    workdir = Path(OUT.value).resolve() / f"{TASK.value}-{arm}-seed{seed}"
    workdir.parent.mkdir(parents=True, exist_ok=True)
    fields = {
        **ARMS[arm], "seed": seed, "sampled_tokens": TOKENS.value, "steps": 100_000,
        "update.schedule": "constant", "evaluate.every": 0, "log.trees_every": 0,
    }  # fmt: skip
    settings = [f"--config.{name}={value}" for name, value in fields.items()]
    settings += [f"--config.{field}" for field in FIELDS.value]
    config = f"--config=configs/{TASK.value}.py"
    call(
        ["launch/train.py", config, f"--workdir={workdir}", *settings],
        workdir.with_suffix(".log"), cores,
    )  # fmt: skip
    rows = read_lines(workdir / "metrics.jsonl")
    result = {"arm": arm, "seed": int(seed), "steps": rows[-1]["step"]}
    result |= {name: rows[-1][name] for name in rows[-1] if name.startswith(("evaluate", "tokens"))}
    result["start"] = rows[0]["evaluate/success"]
    result["seconds"] = sum(row.get("seconds/step", 0.0) for row in rows)
    if "per_role" in arm:
        printed = call(
            ["launch/evaluate.py", f"--workdir={workdir}", "--swap_roles",
             f"--episodes={int(rows[-1]['evaluate/episodes'])}"],
            workdir.with_suffix(".swapped.log"), cores,
        )  # fmt: skip
        result["swapped"] = json.loads(printed.splitlines()[-1])["evaluate/success"]
    print(f"{arm} seed {seed}: {result['evaluate/success']:.3f}", flush=True)
    return result


def table(results: list[dict[str, object]]) -> str:
    """Markdown: a row an arm, successes of all its seeds pooled for the interval."""
    lines = ["| arm | held-out success, each seed | mean | 95 % | tokens | steps |"]
    lines.append("|" + "---|" * 6)
    for arm in dict.fromkeys(result["arm"] for result in results):
        mine = [result for result in results if result["arm"] == arm]
        for name, label in (("evaluate/success", arm), ("swapped", f"{arm}, swapped")):
            shares = [result[name] for result in mine if name in result]
            if not shares:
                continue
            boards = int(mine[0]["evaluate/episodes"])
            low, high = wilson(round(sum(shares) * boards), boards * len(shares))
            tokens = sum(result["tokens/sampled"] for result in mine) / len(mine)
            steps = sum(result["steps"] for result in mine) / len(mine)
            each = ", ".join(f"{share:.3f}" for share in shares)
            lines.append(
                f"| {label} | {each} | {sum(shares) / len(shares):.3f} | {low:.3f}-{high:.3f} | "
                f"{tokens / 1e6:.2f} M | {steps:.0f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Runs what is missing and prints the table."""
    cores = sorted(os.sched_getaffinity(0))
    shares = [set(cores[i :: JOBS.value]) or set(cores) for i in range(JOBS.value)]
    jobs = [(arm, seed) for seed in SEEDS.value for arm in CHOSEN.value or ARMS]
    free = list(shares)

    def work(job: tuple[str, str]) -> dict[str, object]:
        mine = free.pop()
        try:
            return run_arm(*job, mine)
        finally:
            free.append(mine)

    with ThreadPoolExecutor(JOBS.value) as pool:
        results = list(pool.map(work, jobs))
    results.sort(key=lambda result: (list(ARMS).index(str(result["arm"])), result["seed"]))
    Path(OUT.value, f"{TASK.value}.json").write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    launch(main, lambda: None)
