"""Renderings say everything, with closed vocabularies, and a grid reads back as its state."""

import numpy as np
import pytest

from atgrpo_jax.workflows import WORKFLOWS
from environments import legend
from environments.parser import parse_moves
from environments.plan_path import text as plan_path
from environments.scene import Effect, Proposal, Scene, answer_rule, grid_text
from environments.sokoban import text as sokoban

TOOL = WORKFLOWS["planner_tool"].stages[0].agents[0]
PLANNER = WORKFLOWS["planner_tool"].stages[1].agents[0]


def sokoban_view(size, rng):
    walls = np.ones((size, size), bool)
    walls[1:-1, 1:-1] = rng.random((size - 2, size - 2)) < 0.2
    free = rng.permutation(np.argwhere(~walls))
    goals, boxes = np.zeros_like(walls), np.zeros_like(walls)
    goals[tuple(free[:2].T)] = True
    boxes[tuple(free[[1, 2]].T)] = True  # one box on a goal, one beside
    agent = free[0] if rng.random() < 0.5 else free[3]
    kinds = rng.integers(0, 3, 4)
    return {
        "walls": walls,
        "goals": goals,
        "boxes": boxes,
        "agent": agent,
        "kinds": kinds,
        "solved": np.bool_(False),
    }


def plan_path_view(size, rng):
    walls = rng.random((size, size)) < 0.22
    free = rng.permutation(np.argwhere(~walls))
    goal = free[0] if rng.random() < 0.3 else free[1]
    return {
        "walls": walls,
        "agent": free[0],
        "goal": goal,
        "kinds": rng.integers(0, 2, 4),
        "solved": np.bool_(np.array_equal(free[0], goal)),
    }


GAMES = {"sokoban": (sokoban, sokoban_view), "plan_path": (plan_path, plan_path_view)}


def scenes(game, size, count=30):
    _, make = GAMES[game]
    rng = np.random.default_rng(size)
    lists = [(0, 3, 1), None, (2,) * 10]
    for i in range(count):
        view, after = make(size, rng), make(size, rng)
        notes = (Proposal("tool", lists[i % 3], i % 2, after),) if i % 2 else ()
        last = [None, Effect((0, 1), 1, True), Effect(None, 0, False, "empty list")][i % 3]
        yield Scene(PLANNER if notes else TOOL, i % 8, view, notes, last, 10)


def test_legend_order():
    assert legend.MOVES == ("U", "D", "L", "R")
    assert legend.DELTAS == ((-1, 0), (1, 0), (0, -1), (0, 1))


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("size", [6, 10])
def test_compact_words_are_in_the_vocabulary(game, size):
    text, _ = GAMES[game]
    words = text.vocabulary(max_size=10)
    assert len(set(words)) == len(words)
    for scene in scenes(game, size):
        assert set(text.compact(scene).split(" ")) <= set(words)
    assert {"[", "]", *legend.MOVES, "r0c0", "r9c9", "-9-9", "-9+9", "+9-9", "+9+9"} <= set(words)


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("size", [6, 10])
def test_grid_reads_back(game, size):
    text, _ = GAMES[game]
    seen = set()
    for scene in scenes(game, size, 60):
        rows = text.rows(scene.view)
        seen |= set("".join(rows))
        for name, array in text.parse_grid(grid_text(rows)).items():
            np.testing.assert_array_equal(array, scene.view[name], err_msg=name)
    assert seen == set(text.SYMBOLS)  # the legend lists exactly the symbols used


@pytest.mark.parametrize("game", GAMES)
def test_grid_refuses_an_unknown_symbol_and_a_second_agent(game):
    text, make = GAMES[game]
    rows = text.rows(make(6, np.random.default_rng(0)))
    with pytest.raises(ValueError, match="unknown"):
        text.parse_grid(grid_text([rows[0][:-1] + "?", *rows[1:]]))
    with pytest.raises(ValueError, match="exactly one"):
        text.parse_grid(grid_text(["@" * 6, *rows[1:]]))


def test_sokoban_compact_by_hand():
    boards = np.zeros((3, 6, 6), bool)
    walls, goals, boxes = boards
    walls[[0, -1]] = walls[:, [0, -1]] = True
    walls[3, 3] = True
    goals[4, 4] = boxes[1, 2] = True
    view = {
        "walls": walls,
        "goals": goals,
        "boxes": boxes,
        "agent": np.array([2, 3]),
        "kinds": np.array([1, 0, 2, 1]),
        "solved": np.bool_(False),
    }
    plan = Proposal("tool", (0, 3), 0, {**view, "agent": np.array([1, 4])})
    scene = Scene(PLANNER, 2, view, (plan,), Effect((1,), 1, False), 10)
    assert sokoban.compact(scene) == (
        "planner t2 agent r2c3 box r1c2 -1-1 to +3+2 open:DLR goal r4c4 +2+1 wall +1+0 "
        "moves U:walk D:blocked L:push R:walk last D kept "
        "plan U R then agent r1c4 box r1c2 +0-2 to +3+2 open:DLR goal r4c4 +3+0 open"
    )


def test_plan_path_compact_by_hand():
    walls = np.zeros((10, 10), bool)
    walls[0, 1] = True
    view = {
        "walls": walls,
        "agent": np.array([0, 0]),
        "goal": np.array([2, 1]),
        "kinds": np.array([0, 1, 0, 0]),
        "solved": np.bool_(False),
    }
    words = plan_path.compact(Scene(TOOL, 0, view, (), None, 10)).split(" ")
    crop = words[words.index("view") + 1 : words.index("moves")]
    assert " ".join(crop) == (
        "### # ### ### # ### ### # ### ### . #.. ### . ... ### . ... ### . ..."
    )
    assert " ".join(words[: words.index("view")]) == "tool t0 agent r0c0 goal r2c1 +2+1"
    moves = " ".join(words[words.index("moves") :])
    assert moves == "moves U:blocked D:walk L:blocked R:blocked last none"


@pytest.mark.parametrize("game", GAMES)
def test_unreadable_proposal_and_feedback_are_said(game):
    text, make = GAMES[game]
    view = make(6, np.random.default_rng(1))
    plan = Proposal("tool", None, 0, view)
    scene = Scene(PLANNER, 1, view, (plan,), Effect(None, 0, False, "empty list"), 10)
    assert "last invalid kept plan invalid then" in text.compact(scene)
    message = text.grid(scene)
    assert "no readable list" in message
    assert "was not executed (empty list)" in message


@pytest.mark.parametrize("game", GAMES)
def test_grid_message_states_legend_limit_and_role(game):
    text, make = GAMES[game]
    view = make(6, np.random.default_rng(2))
    proposal = Proposal("tool", (0, 3), 1, view)
    tool = text.grid(Scene(TOOL, 0, view, (), None, 7))
    planner = text.grid(Scene(PLANNER, 0, view, (proposal,), None, 7))
    assert tool.count(grid_text(text.rows(view))) == 1
    assert planner.count(grid_text(text.rows(view))) == 2
    assert "simulated, not executed" in tool
    assert "Proposal of the tool: [U,R]" in planner
    for message in (tool, planner):
        assert "1 to 7 moves" in message
        assert all(f"{symbol} {name}" in message for symbol, name in text.SYMBOLS.items())


def test_example_answer_of_the_prompt_is_readable():
    example = answer_rule(10).split("for example ")[1].split(".")[0]
    assert parse_moves(example, 10).moves == (0, 3, 1)
