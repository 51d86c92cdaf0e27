"""One self-contained HTML page of a run: learning curves and sampled trees, step by step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from atgrpo_jax.config import ConfigError
from atgrpo_jax.files import read_lines, replace_text

TEMPLATE = Path(__file__).with_name("page.html")
PLACE = "/*RUN*/null"
STEPS = 6  # of the steps whose trees were written, at most this many are shown


def write_page(workdir: str) -> Path:
    """Writes WORKDIR/view.html. Raises ConfigError if `workdir` holds no run."""
    root = Path(workdir)
    text = page(
        {
            "name": root.resolve().name,
            "config": _config(root),
            "metrics": read_lines(root / "metrics.jsonl"),
            "steps": _trees(root / "rollouts"),
        }
    )
    target = root / "view.html"
    replace_text(target, text)
    return target


def page(run: dict[str, Any]) -> str:
    """The page of one run's data. What models wrote stays data: it is never parsed as HTML."""
    data = json.dumps(run, allow_nan=False)
    # Inside <script>, "</" and "<!--" could end or open something; as escapes they cannot.
    for character in "<>&\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    before, after = TEMPLATE.read_text().split(PLACE)
    return before + data + after


def _config(root: Path) -> Any:
    try:
        return json.loads((root / "config.json").read_text())
    except FileNotFoundError:
        raise ConfigError(f"{root} holds no config.json; give the --workdir of a run") from None


def _trees(folder: Path) -> list[dict[str, Any]]:
    """Trees of the first, the last and evenly spaced steps between."""
    files = sorted(folder.glob("step_*.jsonl"))
    count = min(len(files), STEPS)
    wanted = sorted({round(i * (len(files) - 1) / max(count - 1, 1)) for i in range(count)})
    return [
        {"step": int(files[i].stem.removeprefix("step_")), "trees": read_lines(files[i])}
        for i in wanted
    ]
