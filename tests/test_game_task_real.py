"""GameTask over the real games: every view is drawn, read back and scored."""

import numpy as np
import pytest

from atgrpo_jax.workflows import WORKFLOWS
from environments.game import GameTask
from environments.plan_path.env import PlanPath
from environments.plan_path.types import PlanPathConfig
from environments.scene import grid_text
from environments.sokoban.env import Sokoban
from environments.sokoban.types import SokobanConfig

SOLO_STAGE = WORKFLOWS["solo"].stages[0]
SOLO = SOLO_STAGE.agents[0]
GAMES = {
    "sokoban": lambda: Sokoban(SokobanConfig(size=6, boxes=1)),
    "plan_path": lambda: PlanPath(PlanPathConfig()),
}
KEYS = np.stack([np.arange(4, dtype=np.uint32), np.full(4, 7, np.uint32)], 1)


@pytest.fixture(scope="module", params=GAMES)
def task(request):
    return GameTask(GAMES[request.param](), max_moves=10)


def test_boards_read_back(task):
    state = task.reset(KEYS, False)
    views = task._view(state.boards)
    for e in range(len(KEYS)):
        rows = task.board(state, e)["rows"]
        for name, array in task.text.parse_grid(grid_text(rows)).items():
            np.testing.assert_array_equal(array, views[name][e], err_msg=name)


def test_compact_words_are_in_the_vocabulary(task):
    words = set(task.text.vocabulary())
    state = task.reset(KEYS, True)
    for turn in range(3):
        for conversation in task.observe(state, SOLO, turn):
            assert set(conversation[0]["content"].split(" ")) <= words
        state, _ = task.advance(state, {"solo": ["[U,R]", "[D,L]", "[L]", "x"]}, SOLO_STAGE, turn)


def test_parts_are_bounded_and_malformed_replies_earn_no_format(task):
    state = task.reset(KEYS, False)
    replies = [["[U,D,L,R]", "[R]", "[u]"]] * len(KEYS)
    scores = task.score(state, SOLO, replies, np.ones(len(KEYS), bool))
    assert {"team", "format", "legal", "executes"} <= set(task.parts)
    assert set(scores.parts) == set(task.parts)
    assert all(np.abs(part).max() <= 1 for part in scores.parts.values())
    assert scores.parts["format"].tolist() == [[1, 1, 0]] * len(KEYS)
    assert not scores.parts["legal"][:, 2].any()


def test_score_and_advance_agree_on_the_next_state(task):
    state = task.reset(KEYS, False)
    after, report = task.advance(state, {"solo": ["[U,D,L,R]"] * 4}, SOLO_STAGE, 0)
    assert report["solo"]["listed"].tolist() == [4] * 4
    scores = task.score(state, SOLO, [["[U,D,L,R]"]] * 4, np.ones(4, bool))
    solved = task.status(after).success
    assert ((scores.parts["team"][:, 0] == 1) == solved).all()
