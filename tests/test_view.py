"""The viewer's page: complete, self-contained, and safe whatever a model wrote."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from atgrpo_jax.config import ConfigError, from_dict, to_json
from atgrpo_jax.view import page, write_page
from configs import sokoban

ROOT = Path(__file__).resolve().parents[1]
EVIL = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)><!-- \u2028 [U]"
CHROME = next(
    (n for n in ("chromium", "chromium-browser", "google-chrome") if shutil.which(n)), None
)


def response(text, advantage):
    return {
        "text": text, "reward": 0.5, "parts": {"team": 0.0, "format": 1.0},
        "advantage": advantage, "member": True, "tokens": 4,
    }  # fmt: skip


def node(turn, agent, advanced):
    legend = {"#": "wall", ".": "empty floor", "@": "you", "B": "box", "G": "goal"}
    return {
        "turn": turn, "agent": agent, "advanced": advanced, "weight_version": 3,
        "board": {"kind": "sokoban", "rows": ["#####", "#@BG#", "#####"], "legend": legend},
        "prompt": [{"role": "user", "content": f"{agent} sees {EVIL}"}],
        "responses": [response(EVIL, -0.5), response("[ R ]", 1.25)],
    }  # fmt: skip


@pytest.fixture
def workdir(tmp_path):
    config = from_dict(sokoban.get_config("smoke").to_dict())
    (tmp_path / "config.json").write_text(to_json(config))
    scores = {"evaluate/success_low": 0.3, "evaluate/success_high": 0.5, "evaluate/episodes": 1024}
    lines = [
        {"step": 0, "evaluate/success": 0.4, **scores, "tool/reward": 0.1, "tool/part/team": 0.2,
         "rollout/success": 0.6, "update/team/entropy": 0.7, "seconds/step": 3.0},
        {"step": 1, "tool/reward": 0.2, "rollout/success": 0.7, "update/team/entropy": 0.6},
        {"step": 2, "evaluate/success": 0.875, **scores},
    ]  # fmt: skip
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3, "eva'
    (tmp_path / "metrics.jsonl").write_text(text)
    (tmp_path / "rollouts").mkdir()
    for step in range(0, 200, 10):
        tree = {"environment": 0, "nodes": [node(0, "tool", 1), node(0, "planner", -1)]}
        (tmp_path / f"rollouts/step_{step:06d}.jsonl").write_text(json.dumps(tree) + "\n")
    return tmp_path


def data_of(text):
    return json.loads(re.search(r"const run = (.*);\n", text).group(1))


def test_the_page_holds_the_run_and_nothing_from_elsewhere(workdir):
    text = write_page(str(workdir)).read_text()
    run = data_of(text)
    assert [row["step"] for row in run["metrics"]] == [0, 1, 2]
    assert [step["step"] for step in run["steps"]] == [0, 40, 80, 110, 150, 190]
    assert run["steps"][0]["trees"][0]["nodes"][0]["responses"][0]["text"] == EVIL
    assert not re.search(r"(src|href)=|@import|url\(", text.split("const run")[0])


def test_nothing_a_model_wrote_is_markup():
    text = page({"name": EVIL, "metrics": [], "steps": [], "config": {}})
    assert text.count("</script>") == 1
    assert "<img" not in text
    assert data_of(text)["name"] == EVIL


def test_a_run_that_has_only_begun_has_a_page_too(workdir):
    (workdir / "metrics.jsonl").unlink()
    shutil.rmtree(workdir / "rollouts")
    run = data_of(write_page(str(workdir)).read_text())
    assert (run["metrics"], run["steps"]) == ([], [])


def test_a_folder_without_a_run_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="holds no config.json"):
        write_page(str(tmp_path))
    done = subprocess.run(
        [sys.executable, "launch/view.py", f"--workdir={tmp_path}"],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: ")


@pytest.mark.skipif(CHROME is None, reason="needs chromium")
def test_a_browser_shows_it(workdir):
    """What the scripts build, as the browser serialises it."""
    done = subprocess.run(
        [CHROME, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000",
         "--dump-dom", f"file://{write_page(str(workdir))}"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    shown = done.stdout.split('<main id="page">')[1].split("</main>")[0]
    assert "<title>" in done.stdout
    assert "owned" not in re.search("<title>(.*?)</title>", done.stdout).group(1)
    assert "87.5 %" in shown
    assert shown.count("<svg") == 5
    assert shown.count('class="card node"') == 2
    assert shown.count('<tr class="advanced">') == 1
    assert "none could be scored" in shown
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown
    assert "<img" not in shown
    assert shown.count('<table class="board">') == 2
