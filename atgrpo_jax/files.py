"""Files that are written whole or not at all."""

import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Makes `path` hold `text`; whenever the process is killed, it holds that or what it held."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
