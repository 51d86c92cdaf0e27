"""What a run reports: metrics.jsonl, TensorBoard, sampled trees, and progress on the console."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from tensorboardX import SummaryWriter
from tqdm import tqdm

from atgrpo_jax.files import read_lines, replace_text

# Console columns: label -> the metric, shown when a step has it.
HELD_OUT = "evaluate/success"
COLUMNS = {
    "held-out": HELD_OUT,
    "success": "rollout/success",
    "reward": "rollout/reward",
}
# Shares that mean, at 1, that nothing is being learned.
ALARMS = {
    "groups/without_contrast": "no group has any contrast, so nothing is learned",
    "rollout/truncated": "every reply is cut off; raise config.rollout.max_new_tokens",
}
ALARM_STEPS = 5
NOT_FINITE = "log/not_finite"


class Logger:
    """Writes under `workdir`; close it, or use it in `with`. Bad values never stop a run.

    A run resumed at `resume_step` leaves one value a step: what an earlier process wrote from that
    step on is removed.
    """

    def __init__(self, workdir: str, resume_step: int, steps: int | None = None) -> None:
        self.root, self.steps = Path(workdir), steps
        self.root.mkdir(parents=True, exist_ok=True)
        path = self.root / "metrics.jsonl"
        truncate(path, resume_step)
        remove_trees(self.root / "rollouts", resume_step)
        self._file = path.open("a")
        self._board = SummaryWriter(
            str(self.root / "tensorboard"),
            purge_step=resume_step,
            # Its file names count seconds; a quick restart would overwrite the first file.
            filename_suffix=f".{time.time_ns()}",
        )
        self._warned: set[str] = set()
        self._alarmed = dict.fromkeys(ALARMS, 0)
        self._last = time.perf_counter()
        # None: no bar where the output is a file; there every step is a line.
        self._bar = tqdm(
            total=steps, initial=resume_step, disable=None, dynamic_ncols=True, unit="step"
        )

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl, handed to the system before this returns.

        NaN and infinities are left out and counted in log/not_finite; what is no number is left
        out. Both are named in a warning, once a metric.
        """
        values = self._scalars(step, metrics)
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            self._board.add_scalar(name, value, step)
        self._raise_alarms(step, values)
        now = time.perf_counter()
        line = progress(step, self.steps, values, now - self._last)
        self._last = now
        if self._bar.disable:
            print(line, flush=True)
            return
        if HELD_OUT in values:
            self._bar.write(line)
        shown = {label: values[name] for label, name in COLUMNS.items() if name in values}
        self._bar.set_postfix({label: f"{value:.3f}" for label, value in shown.items()})
        self._bar.update(min(step + 1, self.steps or step + 1) - self._bar.n)

    def trees(self, step: int, trees: Iterable[Mapping[str, Any]]) -> None:
        """rollouts/step_NNNNNN.jsonl, one tree a line, whole or not at all; nothing for none."""
        lines = [json.dumps(tree, default=plain) for tree in trees]
        if lines:
            folder = self.root / "rollouts"
            folder.mkdir(exist_ok=True)
            replace_text(folder / f"step_{step:06d}.jsonl", "\n".join(lines) + "\n")

    def close(self) -> None:
        """Everything is on disk afterwards."""
        self._bar.close()
        self._file.close()
        self._board.close()

    def __enter__(self) -> Logger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _scalars(self, step: int, metrics: Mapping[str, Any]) -> dict[str, float]:
        values, not_finite = {}, 0
        for name, given in metrics.items():
            value = scalar(given)
            if value is None:
                self._warn(name, f"metric {name} at step {step} is no number ({kind_of(given)})")
            elif not math.isfinite(value):
                not_finite += 1
                self._warn(name, f"metric {name} at step {step} is {value}")
            else:
                values[name] = value
        return values | {NOT_FINITE: float(not_finite)}

    def _warn(self, name: str, text: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            print(f"warning: {text}; it is left out of the logs", file=sys.stderr)

    def _raise_alarms(self, step: int, values: Mapping[str, float]) -> None:
        for name, text in ALARMS.items():
            if name in values:
                self._alarmed[name] = self._alarmed[name] + 1 if values[name] >= 1.0 else 0
            if name in values and self._alarmed[name] == ALARM_STEPS:
                print(f"WARNING: for {ALARM_STEPS} steps up to {step} {text}", file=sys.stderr)


def scalar(value: Any) -> float | None:
    """A float for numbers, bools and arrays of one number, of any dtype; else None."""
    if isinstance(value, str | bytes | list | tuple | dict) or value is None:
        return None
    try:
        array = np.asarray(value)
        return float(array.reshape(())) if array.size == 1 else None
    except (TypeError, ValueError):
        return None


def kind_of(value: Any) -> str:
    """A value's type, and its shape if it has one."""
    shape = getattr(value, "shape", None)
    return type(value).__name__ + (f" of shape {tuple(shape)}" if shape is not None else "")


def progress(
    step: int, steps: int | None, values: Mapping[str, float], seconds: float, width: int = 79
) -> str:
    """One console line, at most `width` characters: step, what there is of COLUMNS, time."""
    line = f"step {step}" + (f"/{steps}" if steps is not None else "")
    for label, name in COLUMNS.items():
        if name in values:
            line += f"  {label} {values[name]:.3f}"
    return f"{line}  {seconds:.1f} s"[:width]


def truncate(path: Path, resume_step: int) -> None:
    """Drops what is at or after `resume_step` and what is no whole line of JSON, atomically."""
    if not path.exists():
        return
    rows = [row for row in read_lines(path) if isinstance(row, dict)]
    kept = [row for row in rows if isinstance(row.get("step"), int) and row["step"] < resume_step]
    replace_text(path, "".join(json.dumps(row) + "\n" for row in kept))


def remove_trees(folder: Path, resume_step: int) -> None:
    """Removes the tree files at or after `resume_step`."""
    for path in folder.glob("step_*.jsonl"):
        if int(path.stem.removeprefix("step_")) >= resume_step:
            path.unlink()


def plain(value: Any) -> Any:
    """Arrays and numpy numbers for JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a tree holds {kind_of(value)}; give numbers, strings, lists or arrays")
