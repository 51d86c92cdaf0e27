"""Plan-Path against a plain Python reference: distances, moves, rewards, splits."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from environments.legend import DELTAS
from environments.plan_path.env import PlanPath
from environments.plan_path.types import PlanPathConfig
from environments.split import is_heldout

ENV = PlanPath()
MOVE, RUN, OPTIMAL = jax.jit(ENV.move), jax.jit(ENV.run), jax.jit(ENV.optimal_moves)


def boards(count, heldout=False, seed=0, env=ENV):
    keys = jax.random.split(jax.random.key(seed), count)
    return jax.jit(jax.vmap(env.reset_split, (0, None)))(keys, jnp.bool_(heldout))


def bfs(walls, goal):
    """Distances by a queue, in plain Python."""
    size = len(walls)
    found, queue = {tuple(goal): 0}, deque([tuple(goal)])
    while queue:
        cell = queue.popleft()
        for row, column in DELTAS:
            near = (cell[0] + row, cell[1] + column)
            if min(near) >= 0 and max(near) < size and not walls[near] and near not in found:
                found[near] = found[cell] + 1
                queue.append(near)
    table = np.full(walls.shape, -1)
    for cell, value in found.items():
        table[cell] = value
    return table


@pytest.mark.parametrize(("size", "rate"), [(10, 0.22), (10, 0.5), (3, 0.3), (2, 0.0)])
def test_every_board_is_solvable_and_distances_are_true(size, rate):
    env = PlanPath(PlanPathConfig(size=size, wall_rate=rate))
    count = 1000 if size == 10 else 100
    state = jax.device_get(boards(count, env=env))
    for e in range(count):
        walls, goal, agent = state.level.walls[e], state.level.goal[e], state.agent[e]
        if size == 2 and not state.valid[e]:
            continue
        assert state.valid[e]
        expected = bfs(walls, goal)
        np.testing.assert_array_equal(state.level.distance[e], expected)
        assert not walls[tuple(goal)]
        assert state.level.start_distance[e] == expected[tuple(agent)] > 0


def test_splits_are_disjoint_by_layout_and_no_board_is_repeated():
    training, heldout = boards(2000), boards(2000, heldout=True)
    layouts = [
        {w.tobytes() for w in np.asarray(state.level.walls)} for state in (training, heldout)
    ]
    assert not layouts[0] & layouts[1]
    assert len(layouts[0]) > 1990
    hashes = jax.vmap(ENV.layout_hash)(heldout)
    assert np.asarray(is_heldout(hashes)).all()


def test_moves_equal_a_plain_reference():
    state = boards(200)
    moves = np.random.default_rng(0).integers(0, 4, (200, 60)).astype(np.int32)
    after, trace = jax.device_get(jax.jit(jax.vmap(ENV.run))(state, moves))
    walls, goals, agents = jax.device_get((state.level.walls, state.level.goal, state.agent))
    for e in range(200):
        cell, executed, blocked = tuple(agents[e]), 0, 0
        for move in moves[e]:
            if cell == tuple(goals[e]):
                break
            executed += 1
            near = (cell[0] + DELTAS[move][0], cell[1] + DELTAS[move][1])
            if min(near) < 0 or max(near) > 9 or walls[e][near]:
                blocked += 1
            else:
                cell = near
        assert cell == tuple(after.agent[e])
        assert (executed, blocked) == (trace.executed[e], trace.blocked[e])
    assert trace.blocked.sum() > 100


def shortest(state):
    """One shortest list, by optimal_moves."""
    moves = []
    while not ENV.success(state):
        moves.append(int(np.flatnonzero(OPTIMAL(state))[0]))
        state = MOVE(state, jnp.int32(moves[-1]))
    return moves


def one(seed=0):
    return jax.tree.map(lambda array: array[0], boards(1, seed=seed))


def listed(*moves):
    return jnp.asarray([*moves] + [-1] * (32 - len(moves)), jnp.int32)


def test_optimal_moves_lead_to_the_goal_and_later_moves_are_not_executed():
    for state in (jax.tree.map(lambda x, e=e: x[e], boards(5)) for e in range(5)):
        moves = shortest(state)
        assert len(moves) == state.level.start_distance
        after, trace = RUN(state, listed(*moves, 0, 1, 2, 3))
        assert ENV.success(after)
        assert trace.executed == len(moves)
        again, _ = RUN(after, listed(0, 1, 2, 3))
        np.testing.assert_array_equal(again.agent, after.agent)


def play(state, lists):
    """Team and shape of each list in turn."""
    earned = []
    for moves in lists:
        after, trace = RUN(state, listed(*moves))
        parts = ENV.parts(state, after, trace, jnp.bool_(True))
        earned.append((float(parts["team"]), float(parts["shape"])))
        state = after
    return earned, state


def test_walking_to_and_fro_earns_nothing():
    state = one()
    step = shortest(state)[0]
    back = step ^ 1  # U and D, L and R are neighbours in the legend
    earned, _ = play(state, [[step]] + [[back], [step]] * 20)
    assert earned[0][0] > 0
    assert all(team == 0 for team, _ in earned[1:])
    assert abs(sum(shape for _, shape in earned[1:])) < 1e-5


def test_finishing_is_strictly_best():
    state = one()
    moves = shortest(state)
    finish, _ = play(state, [moves])
    hover, _ = play(state, [moves[:-1], [], []])
    assert finish[0][0] == 1 > sum(team for team, _ in hover)


def test_parts_of_an_unreadable_reply():
    state = one()
    after, trace = RUN(state, listed())
    parts = ENV.parts(state, after, trace, jnp.bool_(False))
    assert all(float(value) == 0 for value in parts.values())


def test_kinds_say_which_moves_change_the_state():
    state = boards(300)
    kinds = jax.vmap(ENV.move_kinds)(state)
    for action in range(4):
        moved = jax.vmap(ENV.move, (0, None))(state, jnp.int32(action))
        changed = (moved.agent != state.agent).any(-1)
        np.testing.assert_array_equal(changed, kinds[:, action] == 1)


def test_gymnax_step_does_not_reset():
    key, state = jax.random.key(0), one()
    for move in shortest(state):
        observation, state, reward, done, info = ENV.step_env(
            key, state, jnp.int32(move), ENV.default_params
        )
    assert done
    assert info["success"]
    assert reward > 1
    assert observation.shape == (3, 10, 10)
    _, state, reward, _, _ = ENV.step_env(key, state, jnp.int32(0), ENV.default_params)
    assert ENV.success(state)
    assert reward == 0


@pytest.mark.parametrize("fields", [{"size": 1}, {"size": 11}, {"wall_rate": 0.9}])
def test_impossible_boards_are_refused_at_once(fields):
    with pytest.raises(ValueError, match="for plan_path"):
        PlanPathConfig(**fields)
