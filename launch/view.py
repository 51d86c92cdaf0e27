"""Writes DIR/view.html: python launch/view.py --workdir=DIR."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from absl import flags  # noqa: E402

from atgrpo_jax.command import launch  # noqa: E402
from atgrpo_jax.config import ConfigError  # noqa: E402
from atgrpo_jax.view import write_page  # noqa: E402

WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the run.")


def main() -> None:
    """Writes the page and says where it is."""
    if not WORKDIR.value:
        raise ConfigError("give --workdir=DIR, the directory of a run")
    print(f"open {write_page(WORKDIR.value)} in a browser")


if __name__ == "__main__":
    launch(main, lambda: None)
