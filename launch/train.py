"""Trains: python launch/train.py --config=configs/TASK.py[:VARIANT] --workdir=DIR."""

import importlib
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

# `python launch/train.py` puts launch/ on the import path, not the root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from absl import app, flags  # noqa: E402
from ml_collections import ConfigDict, config_flags  # noqa: E402

from atgrpo_jax.config import ConfigError, from_config_dict  # noqa: E402

CONFIG = config_flags.DEFINE_config_file("config", help_string="configs/TASK.py[:VARIANT]")
WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the run; resumed if it holds one.")


def fail(error: BaseException) -> NoReturn:
    """The error's last line and exit status 2."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    print(f"error: {line.split('ConfigError: ')[-1]}", file=sys.stderr)
    sys.exit(2)


def parse(arguments: list[str]) -> list[str]:
    """Reads the flags; whatever is wrong with them is said on one line."""
    try:
        program, *rest = flags.FLAGS(arguments)
        if not isinstance(CONFIG.value, ConfigDict) or not WORKDIR.value:
            raise ValueError("give --config=configs/TASK.py (a file that exists) and --workdir=DIR")
        if rest:
            raise ValueError(f"{rest[0]!r} is no flag; write --config.FIELD=VALUE")
    except (LookupError, AttributeError) as error:
        fail(ValueError(f"no such config field: {error}; see configs/common.py".replace('"', "")))
    except (flags.Error, ValueError, TypeError, OSError) as error:
        fail(error)
    return [program]


def main(_: list[str]) -> None:
    """Checks the config before anything else, then trains."""
    # An exit, not a kill: logs and checkpoints are closed on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        config = from_config_dict(CONFIG.value)
        # Imported after the check, because it loads everything.
        importlib.import_module("atgrpo_jax.train").run(config, WORKDIR.value)
    except (ValueError, OSError, RuntimeError) as error:
        if not isinstance(error, ConfigError) and Path(WORKDIR.value).is_dir():
            Path(WORKDIR.value, "error.txt").write_text(traceback.format_exc())
        fail(error)


if __name__ == "__main__":
    app.run(main, flags_parser=parse)
