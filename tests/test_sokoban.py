"""Sokoban against a plain Python reference and exhaustive search over all states."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from environments.legend import DELTAS, KINDS
from environments.sokoban.env import Sokoban
from environments.sokoban.solver import rank
from environments.sokoban.types import SokobanConfig, State
from environments.split import is_heldout

ENV = Sokoban()
MOVE, RUN, OPTIMAL = jax.jit(ENV.move), jax.jit(ENV.run), jax.jit(ENV.optimal_moves)


def boards(count, heldout=False, seed=0, env=ENV):
    keys = jax.random.split(jax.random.key(seed), count)
    return jax.jit(jax.vmap(env.reset_split, (0, None)))(keys, jnp.bool_(heldout))


BOARDS = boards(200)


def step(walls, boxes, agent, move):
    """One move on a frozenset of boxes, in plain Python."""
    row, column = DELTAS[move]
    near = (agent[0] + row, agent[1] + column)
    if walls[near]:
        return boxes, agent
    if near in boxes:
        far = (near[0] + row, near[1] + column)
        if walls[far] or far in boxes:
            return boxes, agent
        boxes = boxes - {near} | {far}
    return boxes, near


def cells(grid):
    return frozenset(tuple(int(x) for x in cell) for cell in np.argwhere(grid))


def search(walls, goals, boxes, agent):
    """Fewest moves by breadth-first search, -1 when every state was seen without solving."""
    start = (cells(boxes), tuple(int(x) for x in agent))
    target, seen, queue = cells(goals), {start: 0}, deque([start])
    while queue:
        state = queue.popleft()
        if state[0] == target:
            return seen[state]
        for move in range(4):
            after = step(walls, *state, move)
            if after not in seen:
                seen[after] = seen[state] + 1
                queue.append(after)
    return -1


def views(state):
    return jax.device_get((state.level.walls, state.level.goals, state.boxes, state.agent))


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, 1000),
        ({"wall_rate": 0.4}, 300),
        ({"boxes": 2}, 150),
        ({"size": 5, "wall_rate": 0.0}, 50),
        ({"size": 5, "boxes": 2}, 60),
        ({"size": 10, "wall_rate": 0.3}, 20),
    ],
    ids=str,
)
def test_boards_are_solvable_and_distances_are_true(fields, count):
    env = Sokoban(SokobanConfig(**fields))
    state = boards(count, env=env)
    distance = np.asarray(jax.vmap(env.distance)(state))
    assert np.asarray(state.valid).all()
    for e, arrays in enumerate(zip(*views(state), strict=True)):
        assert search(*arrays) == distance[e] > 0
    np.testing.assert_array_equal(distance, state.level.start_distance)


@pytest.mark.parametrize("fields", [{}, {"boxes": 2}], ids=str)
def test_every_state_of_a_board_including_deadlocks(fields):
    env = Sokoban(SokobanConfig(**fields))
    distance = jax.jit(env.distance)
    for seed in range(3):
        state = jax.tree.map(lambda x: x[0], boards(1, seed=seed, env=env))
        walls, goals, boxes, _ = views(state)
        inner = np.argwhere(~walls)
        random = np.random.default_rng(seed)
        dead = 0
        for _ in range(100):
            picked = inner[random.permutation(len(inner))[: boxes.sum() + 1]]
            moved = np.zeros_like(boxes)
            moved[tuple(picked[:-1].T)] = True
            placed = State(
                state.level, jnp.asarray(moved), jnp.asarray(picked[-1], jnp.int32), state.valid
            )
            expected = search(walls, goals, moved, picked[-1])
            assert distance(placed) == expected
            dead += expected < 0
        assert dead > 0


def test_sets_of_boxes_are_numbered_without_gaps():
    from itertools import combinations

    for boxes in (1, 2, 3, 4):
        grids = np.zeros((0, 9), bool)
        for picked in combinations(range(9), boxes):
            row = np.zeros((1, 9), bool)
            row[0, list(picked)] = True
            grids = np.concatenate([grids, row])
        got = np.sort(np.asarray(rank(jnp.asarray(grids), boxes)))
        np.testing.assert_array_equal(got, np.arange(len(grids)))


def test_moves_equal_a_plain_reference_and_conserve_boxes():
    env = Sokoban(SokobanConfig(boxes=2))
    state = boards(150, env=env)
    moves = np.random.default_rng(0).integers(0, 4, (150, 80)).astype(np.int32)
    after, trace = jax.device_get(jax.jit(jax.vmap(env.run))(state, moves))
    for e, (walls, goals, boxes, agent) in enumerate(zip(*views(state), strict=True)):
        held, place, executed, blocked = cells(boxes), tuple(agent.tolist()), 0, 0
        for move in moves[e]:
            if held == cells(goals):
                break
            executed += 1
            then = step(walls, held, place, move)
            blocked += then == (held, place)
            held, place = then
        assert held == cells(after.boxes[e])
        assert place == tuple(after.agent[e])
        assert (executed, blocked) == (trace.executed[e], trace.blocked[e])
        assert len(held) == 2
        assert not (after.boxes[e] & walls).any()
    assert trace.blocked.sum() > 100


def test_a_box_is_not_pushed_into_another_one_on_a_goal():
    walls = np.pad(np.zeros((4, 4), bool), 1, constant_values=True)
    goals, boxes = np.zeros((6, 6), bool), np.zeros((6, 6), bool)
    goals[1, 4] = goals[2, 1] = boxes[1, 3] = boxes[1, 4] = True
    env = Sokoban(SokobanConfig(boxes=2, wall_rate=0.0))
    level = boards(1, env=env).level
    level = jax.tree.map(lambda x: x[0], level)
    level = level.replace(walls=jnp.asarray(walls), goals=jnp.asarray(goals))
    state = State(level, jnp.asarray(boxes), jnp.array([1, 2], jnp.int32), jnp.bool_(True))
    after = env.move(state, jnp.int32(3))
    np.testing.assert_array_equal(after.boxes, boxes)
    np.testing.assert_array_equal(after.agent, [1, 2])
    assert KINDS[int(env.move_kinds(state)[3])] == "blocked"


def test_kinds_say_which_moves_change_the_state():
    state = boards(300)
    kinds = np.asarray(jax.vmap(ENV.move_kinds)(state))
    for action in range(4):
        moved = jax.vmap(ENV.move, (0, None))(state, jnp.int32(action))
        walked = np.asarray((moved.agent != state.agent).any(-1))
        pushed = np.asarray((moved.boxes != state.boxes).any((1, 2)))
        np.testing.assert_array_equal(walked, kinds[:, action] > 0)
        np.testing.assert_array_equal(pushed, kinds[:, action] == 2)


def test_splits_share_no_layout_and_hold_along_an_episode():
    training, heldout = boards(2000), boards(2000, heldout=True)
    seen = []
    for state in (training, heldout):
        walls, goals, _, _ = views(state)
        seen.append({w.tobytes() + g.tobytes() for w, g in zip(walls, goals, strict=True)})
    assert not seen[0] & seen[1]
    assert len(seen[0]) > 1000
    moved = jax.vmap(ENV.move, (0, None))(heldout, jnp.int32(1))
    assert np.asarray(is_heldout(jax.vmap(ENV.layout_hash)(moved))).all()


def test_levels_differ_between_keys_and_repeat_with_them():
    first, again, other = boards(8), boards(8), boards(8, seed=1)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)
    layouts = {w.tobytes() + g.tobytes() for w, g, _, _ in zip(*views(first), strict=True)}
    assert len(layouts) == 8
    assert (np.asarray(first.boxes) != np.asarray(other.boxes)).any()


def one(seed=0, env=ENV):
    return jax.tree.map(lambda array: array[0], boards(1, seed=seed, env=env))


def shortest(state):
    moves = []
    while not ENV.success(state):
        moves.append(int(np.flatnonzero(OPTIMAL(state))[0]))
        state = MOVE(state, jnp.int32(moves[-1]))
    return moves


def listed(*moves):
    return jnp.asarray([*moves] + [-1] * (32 - len(moves)), jnp.int32)


def test_optimal_moves_solve_and_later_moves_are_not_executed():
    for state in (jax.tree.map(lambda x, e=e: x[e], boards(5)) for e in range(5)):
        moves = shortest(state)
        assert len(moves) == state.level.start_distance
        after, trace = RUN(state, listed(*moves, 0, 1, 2, 3))
        assert ENV.success(after)
        assert ENV.terminated(after)
        assert trace.executed == len(moves)
        parts = ENV.parts(state, after, trace, jnp.bool_(True))
        assert {name: float(value) for name, value in parts.items()} == {
            "team": 1.0, "format": 1.0, "legal": 1.0, "deadlock_free": 1.0,
            "executes": 1.0, "potential": 1.0,
        }  # fmt: skip


def test_potential_telescopes_so_walking_to_and_fro_earns_nothing():
    state, total = one(3), 0.0
    first = state
    for move in (0, 1, 2, 3, 1, 0, 3, 2) * 3:
        after, trace = RUN(state, listed(move))
        if ENV.distance(after) < 0:
            continue
        total += float(ENV.parts(state, after, trace, jnp.bool_(True))["potential"])
        state = after
    gained = (ENV.distance(first) - ENV.distance(state)) / first.level.start_distance
    np.testing.assert_allclose(total, gained, atol=1e-5)


def test_a_deadlock_is_seen_and_ends_the_episode_without_success():
    walls = np.pad(np.zeros((4, 4), bool), 1, constant_values=True)
    state = one(env=Sokoban(SokobanConfig(wall_rate=0.0)))
    goals, boxes = np.zeros((6, 6), bool), np.zeros((6, 6), bool)
    goals[4, 4] = boxes[1, 2] = True
    from environments.sokoban.solver import distances

    table = distances(jnp.asarray(walls[1:-1, 1:-1]), jnp.asarray(goals[1:-1, 1:-1]), 1)
    level = state.level.replace(walls=jnp.asarray(walls), goals=jnp.asarray(goals), table=table)
    state = State(level, jnp.asarray(boxes), jnp.array([1, 3], jnp.int32), state.valid)
    assert ENV.distance(state) == -1  # along the upper wall, and the goal is not there
    assert ENV.terminated(state)
    assert not ENV.success(state)


def test_a_push_into_a_deadlock_loses_its_part_and_gains_nothing():
    state = next(
        found
        for e in range(200)
        for found in [jax.tree.map(lambda x, e=e: x[e], BOARDS)]
        for move in range(4)
        if ENV.distance(MOVE(found, jnp.int32(move))) < 0
    )
    move = next(m for m in range(4) if ENV.distance(MOVE(state, jnp.int32(m))) < 0)
    after, trace = RUN(state, listed(move))
    parts = ENV.parts(state, after, trace, jnp.bool_(True))
    assert (parts["deadlock_free"], parts["potential"], parts["team"]) == (0, 0, 0)
    assert parts["legal"] == 1


def test_parts_of_an_unreadable_reply():
    state = one()
    after, trace = RUN(state, listed())
    parts = ENV.parts(state, after, trace, jnp.bool_(False))
    assert all(float(value) == 0 for value in parts.values())


def test_gymnax_step_does_not_reset_and_pays_nothing_after_the_end():
    key, state = jax.random.key(0), one()
    for move in shortest(state):
        observation, state, reward, done, info = ENV.step_env(
            key, state, jnp.int32(move), ENV.default_params
        )
    assert done
    assert info["success"]
    assert reward > 1
    assert observation.shape == (4, 6, 6)
    before = state
    _, state, reward, _, _ = ENV.step_env(key, state, jnp.int32(0), ENV.default_params)
    np.testing.assert_array_equal(state.agent, before.agent)
    assert reward == 0


def test_ten_by_ten_with_four_boxes_is_generated():
    """Reverse play alone; the exact table of this size takes minutes on a CPU."""
    from environments.sokoban.generator import draw

    config = SokobanConfig(size=10, boxes=4)
    keys = jax.random.split(jax.random.key(0), 50)
    state = jax.vmap(lambda key: draw(config, key, jnp.bool_(False)))(keys)
    assert np.asarray(state.valid).sum() > 25
    assert (np.asarray(state.boxes).sum((1, 2)) == 4).all()


@pytest.mark.parametrize(
    "fields", [{"size": 4}, {"size": 11}, {"boxes": 0}, {"boxes": 5}, {"size": 5, "boxes": 3}]
)
def test_impossible_boards_are_refused_at_once(fields):
    with pytest.raises(ValueError, match=r"environment\.\w+="):
        SokobanConfig(**fields)
