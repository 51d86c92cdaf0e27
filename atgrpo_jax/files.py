"""Files that are written whole or not at all, JSON lines, directories that one process owns."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def replace_text(path: Path, text: str) -> None:
    """Makes `path` hold `text`; whenever the process is killed, it holds that or what it held."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def read_lines(path: Path) -> list[Any]:
    """The whole JSON lines of a file that may be growing; [] if there is none yet."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # the line that is being written, or was when its writer was killed
    return found


@contextmanager
def owned(directory: Path) -> Iterator[None]:
    """Holds `directory` for this process; the system lets go of it however the process ends.

    Raises OSError if another process holds it.
    """
    with (directory / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(
                f"{directory} is in use by another process; wait for it or give another --workdir"
            ) from None
        yield
