"""GameTask over a hand-made corridor, and over the real games."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atgrpo_jax.workflows import WORKFLOWS
from environments.game import GameTask

TOOL_STAGE, PLANNER_STAGE = WORKFLOWS["planner_tool"].stages
TOOL, PLANNER = TOOL_STAGE.agents[0], PLANNER_STAGE.agents[0]
SOLO_STAGE = WORKFLOWS["solo"].stages[0]


class CorridorState(NamedTuple):
    column: jax.Array
    valid: jax.Array


class CorridorTrace(NamedTuple):
    listed: jax.Array
    executed: jax.Array
    blocked: jax.Array


class Corridor:
    """One row of five cells, start in column 0 or 1, goal in column 4."""

    name = "plan_path"

    def __init__(self, failing=()):
        self.failing, self.traces = jnp.array([-1, *failing]), 0

    def reset_split(self, key, heldout):
        column = jax.random.randint(key, (), 0, 2)
        return CorridorState(jnp.where(heldout, column, 0), self.made(key))

    def made(self, key):
        return (jax.random.key_data(key)[0] != self.failing).all()

    def run(self, state, moves_M):
        self.traces += 1

        def step(column, move):
            off = jnp.where(move == 3, 1, jnp.where(move == 2, -1, 0))
            active = (move >= 0) & (column != 4)
            new = jnp.where(active, jnp.clip(column + off, 0, 4), column)
            return new, (active, active & (new == column))

        column, (active, blocked) = jax.lax.scan(step, state.column, moves_M)
        listed = jnp.sum(moves_M >= 0)
        trace = CorridorTrace(listed, jnp.sum(active), jnp.sum(blocked))
        return CorridorState(column, state.valid), trace

    def parts(self, before, after, trace, format_ok):
        shape = (after.column - before.column) / 4.0
        return {"team": after.column / 4.0, "format": format_ok * 1.0, "shape": shape}

    def terminated(self, state):
        return self.success(state)

    def success(self, state):
        return state.column == 4

    def outcome(self, state):
        return state.column / 4.0

    def view(self, state):
        agent = jnp.stack([0, state.column])
        kinds = jnp.array([0, 0, state.column > 0, state.column < 4], jnp.int32)
        return {
            "walls": jnp.zeros((1, 5), bool),
            "agent": agent,
            "goal": jnp.array([0, 4]),
            "kinds": kinds,
            "solved": state.column == 4,
        }


def keys(count):
    return np.stack([np.zeros(count, np.uint32), np.arange(count, dtype=np.uint32)], 1)


@pytest.fixture
def task():
    return GameTask(Corridor(), max_moves=6)


def prompts(task, state, agent, turn=0):
    return [conversation[0]["content"] for conversation in task.observe(state, agent, turn)]


def test_part_names(task):
    assert task.parts == ("format", "shape", "team")


def test_unknown_rendering_is_an_error():
    with pytest.raises(ValueError, match="rendering 'grids'"):
        GameTask(Corridor(), rendering="grids")


def test_score_tries_every_reply_from_the_same_state(task):
    state = task.reset(keys(2), False)
    replies = [["[R]", "[R,R,R,R]", "no"], ["[L]", "[R R]", "[r]"]]
    scores = task.score(state, TOOL, replies, np.ones(2, bool))
    np.testing.assert_allclose(scores.parts["team"], [[0.25, 1, 0], [0, 0.5, 0]])
    np.testing.assert_array_equal(scores.parts["format"], [[1, 1, 0], [1, 1, 0]])
    assert scores.parts["team"].dtype == np.float32
    assert scores.valid.all()
    assert task.status(state).moves.tolist() == [0, 0]


def test_score_skips_environments_that_are_not_live(task):
    state = task.reset(keys(3), False)
    state, _ = task.advance(state, {"solo": ["[R]", None, None]}, SOLO_STAGE, 0)
    scores = task.score(state, TOOL, [[], ["[R]"] * 2, []], np.array([False, True, False]))
    np.testing.assert_allclose(scores.parts["team"], [[0, 0], [0.25, 0.25], [0, 0]])
    with pytest.raises(ValueError, match="differ"):
        task.score(state, TOOL, [["[R]"], ["[R]"] * 2, []], np.array([True, True, False]))


def test_score_compiles_once_and_ignores_list_length(task):
    state = task.reset(keys(2), False)
    task.score(state, TOOL, [["[R]"] * 3] * 2, np.ones(2, bool))
    traces = task.game.traces
    task.score(state, TOOL, [["[R,R,R,R]", "", "[L]"]] * 2, np.ones(2, bool))
    assert task.game.traces == traces


def numbered(count):
    return np.stack([np.arange(count), np.zeros(count)], axis=1).astype(np.uint32)


def test_failed_level_is_invalid_and_never_live():
    task = GameTask(Corridor(failing=[1]))
    state = task.reset(numbered(3), False)
    assert task.score(state, TOOL, [["[R]"]] * 3, np.ones(3, bool)).valid.ravel().tolist() == [
        True, False, True,
    ]  # fmt: skip
    assert task.status(state).done.tolist() == [False, True, False]
    assert not task.status(state).success.any()


def test_a_game_without_room_is_one_line():
    with pytest.raises(ValueError, match="2 of 3 plan_path boards could not be made") as error:
        GameTask(Corridor(failing=[0, 2])).reset(numbered(3), False)
    assert "\n" not in str(error.value)


def test_proposal_is_simulated_shown_to_those_who_see_it_and_forgotten(task):
    state = task.reset(keys(2), False)
    told, report = task.advance(state, {"tool": ["[R,R]", "up"]}, TOOL_STAGE, 0)
    assert task.outcome(told).tolist() == [0, 0]
    assert report["tool"]["format_error"].tolist() == [False, True]
    assert report["tool"]["moves"].tolist() == [2, 0]
    first, second = prompts(task, told, PLANNER)
    assert first.endswith("plan R R then agent r0c2 goal r0c4 +0+2 open")
    assert second.endswith("plan invalid then agent r0c0 goal r0c4 +0+4 open")
    assert "plan " not in prompts(task, told, TOOL)[0]
    moved, report = task.advance(told, {"planner": ["[R,R]", "[L,R]"]}, PLANNER_STAGE, 0)
    assert report["planner"]["copied"].tolist() == [True, False]
    assert report["planner"]["blocked"].tolist() == [0, 1]
    assert task.outcome(moved).tolist() == [0.5, 0.25]
    first, second = prompts(task, moved, PLANNER, 1)
    assert "last R R moved" in first
    assert "last L R moved" in second
    assert "plan " not in first
    assert task.status(moved).moves.tolist() == [2, 2]


def test_states_are_immutable(task):
    state = task.reset(keys(2), False)
    before = prompts(task, state, PLANNER)
    for _ in range(2):
        task.advance(state, {"solo": ["[R]", "[R,R,R,R]"]}, SOLO_STAGE, 0)
        task.advance(state, {"tool": ["[R]", "[R]"]}, TOOL_STAGE, 0)
    assert prompts(task, state, PLANNER) == before
    assert task.status(state).moves.tolist() == [0, 0]


def test_no_reply_changes_nothing_and_keeps_the_feedback(task):
    state = task.reset(keys(2), False)
    state, _ = task.advance(state, {"solo": ["[L]", "[R]"]}, SOLO_STAGE, 0)
    state, report = task.advance(state, {"solo": [None, "[[R]"]}, SOLO_STAGE, 1)
    assert report["solo"]["replied"].tolist() == [False, True]
    assert report["solo"]["format_error"].tolist() == [False, False]
    assert task.outcome(state).tolist() == [0, 0.5]
    assert task.status(state).moves.tolist() == [1, 2]
    assert "last L kept" in prompts(task, state, PLANNER)[0]


def test_solving_ends_and_later_moves_do_nothing(task):
    state = task.reset(keys(1), False)
    state, report = task.advance(state, {"solo": ["[R,R,R,R,L,L]"]}, SOLO_STAGE, 0)
    assert report["solo"]["solved"].tolist() == [True]
    assert report["solo"]["listed"].tolist() == [6]
    assert report["solo"]["moves"].tolist() == [4]
    assert task.status(state).done.tolist() == [True]
    state, _ = task.advance(state, {"solo": ["[L]"]}, SOLO_STAGE, 1)
    assert task.status(state).success.tolist() == [True]


def test_repeat_is_environment_major(task):
    state = task.reset(keys(2), False)
    state, _ = task.advance(state, {"solo": ["[R]", "[R,R]"]}, SOLO_STAGE, 0)
    wide = task.repeat(state, 3)
    assert task.outcome(wide).tolist() == [0.25] * 3 + [0.5] * 3
    assert task.status(wide).moves.tolist() == [1] * 3 + [2] * 3
    assert prompts(task, wide, PLANNER)[::3] == prompts(task, state, PLANNER)


def test_wrong_number_of_replies_is_an_error(task):
    state = task.reset(keys(2), False)
    with pytest.raises(ValueError, match="3 replies for 2"):
        task.advance(state, {"solo": ["[R]"] * 3}, SOLO_STAGE, 0)


def test_board_is_drawn_from_the_state(task):
    board = task.board(task.reset(keys(2), False), 1)
    assert board["kind"] == "plan_path"
    assert board["rows"] == ["@...G"]
    assert set("".join(board["rows"])) <= set(board["legend"])
