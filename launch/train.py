"""Trains: python launch/train.py --config=configs/TASK.py[:VARIANT] --workdir=DIR.

Started again with the same arguments, it goes on where it stopped.
"""

import importlib
import sys
from pathlib import Path

# `python launch/train.py` puts launch/ on the import path, not the root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from absl import flags  # noqa: E402
from ml_collections import ConfigDict, config_flags  # noqa: E402

from atgrpo_jax.command import launch  # noqa: E402
from atgrpo_jax.config import ConfigError, from_config_dict  # noqa: E402

CONFIG = config_flags.DEFINE_config_file("config", help_string="configs/TASK.py[:VARIANT]")
WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the run; resumed if it holds one.")


def main() -> None:
    """Checks the config before anything else, then trains."""
    if not isinstance(CONFIG.value, ConfigDict) or not WORKDIR.value:
        raise ConfigError("give --config=configs/TASK.py (a file that exists) and --workdir=DIR")
    config = from_config_dict(CONFIG.value)
    # Imported after the check, because it loads everything.
    importlib.import_module("atgrpo_jax.train").run(config, WORKDIR.value)


if __name__ == "__main__":
    launch(main, lambda: WORKDIR.value)
