"""Checkpoints of a whole run: atomic, the newest few kept, the best beside them."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read; one line."""


class Checkpoints:
    """`workdir`/checkpoints/steps and /best. Close it, or use it in `with`: that waits for saves.

    States are nested dictionaries, tuples and records of arrays. Writing goes on in the background;
    what failed there raises CheckpointError at the next save and at close.
    """

    def __init__(self, workdir: str, keep: int, read_only: bool = False) -> None:
        """`read_only` never writes or cleans up, so that it is safe beside a running training."""
        root = Path(workdir).resolve() / "checkpoints"
        if read_only and not (root / "best").is_dir():
            raise CheckpointError(f"{root} holds no checkpoints; give the --workdir of a run")
        self._steps = _manager(root / "steps", keep, read_only)
        self._best = _manager(root / "best", 1, read_only)
        self._restored: int | None = None

    def save(self, step: int, state: Any, score: float | None = None) -> None:
        """Keeps `state` as of now; also as the best, if `score` beats every score so far.

        A save at or below the newest step first removes the steps from there on; the step that was
        restored is there already, and may be all there is, so it is left. NaN never wins.
        """
        self._surface()
        flat = _flatten(state)
        if step != self._restored:
            _write(self._steps, step, flat, score)
        if score is None:
            return
        if math.isnan(score):
            print(
                f"warning: the score at step {step} is NaN, so it is not the best", file=sys.stderr
            )
            return
        best = self.best_score()
        if best is None or score > best:
            _write(self._best, step, flat, score)

    def best_score(self) -> float | None:
        """The best checkpoint's score, None without one."""
        self._best.wait_until_finished()
        step = self._best.latest_step()
        return None if step is None else float(_read_score(self._best, step))

    def restore_latest(self, target: Any) -> tuple[int, Any] | None:
        """The newest readable state, with the types and places of `target`; None for a new run.

        A damaged checkpoint gives way to the one before, said in one line. Raises CheckpointError
        if all are damaged or one is of another program or config (names, shapes, dtypes).
        """
        self._steps.wait_until_finished()
        steps = sorted(self._steps.all_steps(), reverse=True)
        for step in steps:
            state = _read(self._steps, step, target)
            if state is not None:
                self._restored = step
                return step, state
        if steps:
            raise CheckpointError(
                f"no checkpoint under {self._steps.directory} can be read; start another --workdir"
            )
        return None

    def restore_best(self, target: Any) -> tuple[int, Any] | None:
        """The state with the best score, or None."""
        self._best.wait_until_finished()
        step = self._best.latest_step()
        if step is None:
            return None
        state = _read(self._best, step, target)
        if state is None:
            raise CheckpointError(f"{self._best.directory}/{step} is damaged; evaluate the newest")
        return step, state

    def close(self) -> None:
        """Waits for what is being written. Raises CheckpointError if it failed."""
        try:
            self._surface()
        finally:
            self._steps.close()
            self._best.close()

    def _surface(self) -> None:
        for manager in (self._steps, self._best):
            try:
                manager.wait_until_finished()
                manager.check_for_errors()
            except Exception as error:
                raise CheckpointError(
                    f"a checkpoint under {manager.directory} failed: {_line(error)}; "
                    "look at the disk, then resume"
                ) from error

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except CheckpointError as failed:
            if error is None:
                raise
            # The first error is the cause; this one must not hide it, nor be lost.
            print(f"error: {failed}", file=sys.stderr)


def _manager(directory: Path, keep: int, read_only: bool) -> ocp.CheckpointManager:
    """Keeps the newest `keep`; orbax's own best_fn would delete the newest for a better one."""
    options = ocp.CheckpointManagerOptions(
        max_to_keep=None if read_only else keep,
        create=not read_only,
        cleanup_tmp_directories=not read_only,
        read_only=read_only,
    )
    handlers = {"state": ocp.StandardCheckpointHandler(), "score": ocp.JsonCheckpointHandler()}
    return ocp.CheckpointManager(directory, options=options, item_handlers=handlers)


def _flatten(state: Any) -> dict[str, Any]:
    """Path -> leaf. Orbax alone would bring tuples, records and integer keys back as others."""
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    # A copy of host arrays, which the caller may change in place while they are being written.
    return {
        jax.tree_util.keystr(path): leaf if isinstance(leaf, jax.Array) else np.array(leaf)
        for path, leaf in leaves
    }


def _write(manager: ocp.CheckpointManager, step: int, flat: dict[str, Any], score: Any) -> None:
    # Orbax answers False, and writes nothing, for a step that is not the newest.
    for later in [old for old in manager.all_steps() if old >= step]:
        manager.delete(later)
    args = ocp.args.Composite(
        state=ocp.args.StandardSave(flat), score=ocp.args.JsonSave({"score": _finite(score)})
    )
    try:
        written = manager.save(step, args=args, force=True)
    except Exception as error:
        raise CheckpointError(
            f"step {step} cannot be saved under {manager.directory}: {_line(error)}"
        ) from error
    if not written:
        raise CheckpointError(f"step {step} was not saved under {manager.directory}")


def _finite(score: float | None) -> float | None:
    return None if score is None or math.isnan(score) else float(score)


def _read_score(manager: ocp.CheckpointManager, step: int) -> float:
    args = ocp.args.Composite(score=ocp.args.JsonRestore())
    return manager.restore(step, args=args)["score"]["score"]


def _read(manager: ocp.CheckpointManager, step: int, target: Any) -> Any:
    """The state at `step` as `target` is; None, said in one line, if it is damaged."""
    wanted = _flatten(target)
    try:
        stored = dict(manager.item_metadata(step)["state"])
        stored = {name: (tuple(leaf.shape), np.dtype(leaf.dtype)) for name, leaf in stored.items()}
    except Exception as error:
        return _damaged(manager, step, error)
    _check_same(stored, wanted, f"{manager.directory}/{step}")
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, wanted)
    args = ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
    try:
        flat = manager.restore(step, args=args)["state"]
    except Exception as error:
        return _damaged(manager, step, error)
    return jax.tree.unflatten(jax.tree.structure(target), [flat[name] for name in wanted])


def _check_same(stored: dict[str, Any], wanted: dict[str, Any], where: str) -> None:
    """Raises CheckpointError for another tree; orbax would cast or drop leaves without a word."""
    for name in {**wanted, **stored}:
        if name not in stored or name not in wanted:
            which = "lacks" if name in wanted else "has an unknown"
            raise CheckpointError(f"{where} {which} {name}; resume with the config it was made by")
        here = (tuple(wanted[name].shape), np.dtype(wanted[name].dtype))
        if stored[name] != here:
            raise CheckpointError(
                f"{where} has {name} as {stored[name][1]}{list(stored[name][0])}, but this run "
                f"needs {here[1]}{list(here[0])}; resume with the config it was made by"
            )


def _damaged(manager: ocp.CheckpointManager, step: int, error: Exception) -> None:
    print(
        f"warning: checkpoint {manager.directory}/{step} is damaged ({_line(error)}); "
        "trying the one before",
        file=sys.stderr,
    )


def _line(error: BaseException) -> str:
    """The first line of an error, shortened."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
