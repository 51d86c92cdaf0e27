"""What every launch script shares: flags that fail on one line, quiet libraries, exit codes."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from absl import app, flags
from absl import logging as absl_logging

from atgrpo_jax.config import ConfigError

# transformers is used for tokenizers alone; it would say that PyTorch is missing.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
FAILED, TERMINATED = 2, 143
# mallopt(3): no mappings of their own for large buffers, one arena, nothing handed back.
MALLOC = {-4: 0, -8: 1, -1: 2**31 - 1, -2: 2**26}


def fail(error: BaseException) -> NoReturn:
    """Prints the error's last line and exits with status 2."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    print(f"error: {line.split('ConfigError: ')[-1]}", file=sys.stderr)
    sys.exit(FAILED)


def launch(body: Callable[[], None], workdir: Callable[[], str | None]) -> None:
    """Runs `body` after reading the flags; what goes wrong is said in one line.

    A fault other than a wrong config leaves its traceback in WORKDIR/error.txt. SIGTERM is an
    exit, not a kill: logs and checkpoints are closed on the way out.
    """
    keep_freed_memory()
    absl_logging.set_verbosity(absl_logging.ERROR)
    logging.getLogger("orbax").setLevel(logging.ERROR)
    app.run(lambda _: _guarded(body, workdir), flags_parser=_parse)


def keep_freed_memory() -> None:
    """Lets this process reuse the memory it has freed, where the C library is glibc.

    By default every large buffer is a fresh mapping, and the system fills it page by page: a fifth
    of an update's time on a CPU.
    """
    try:
        library = ctypes.CDLL("libc.so.6")
    except OSError:
        return  # not glibc: nothing to set
    for option, value in MALLOC.items():
        library.mallopt(option, value)


def _parse(arguments: list[str]) -> list[str]:
    """Reads the flags; whatever is wrong with them is said on one line."""
    try:
        program, *rest = flags.FLAGS(arguments)
        if rest:
            raise ValueError(f"{rest[0]!r} is no flag; write --NAME=VALUE")
    except (LookupError, AttributeError) as error:
        said = str(error.args[0] if error.args else error).replace("\\n", " ")
        said = " ".join(said.translate(str.maketrans("", "", "'\"\\")).split())
        fail(ValueError(f"no such config field: {said}; see configs/common.py"))
    except (flags.Error, ValueError, TypeError, OSError) as error:
        fail(error)
    return [program]


def _guarded(body: Callable[[], None], workdir: Callable[[], str | None]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        body()
    except (ValueError, OSError, RuntimeError) as error:
        root = workdir()
        if not isinstance(error, ConfigError) and root and Path(root).is_dir():
            Path(root, "error.txt").write_text(traceback.format_exc())
        fail(error)
