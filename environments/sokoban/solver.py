"""True distances: backward search over all (set of boxes, player) states of a board.

Sets of b boxes on n inner cells are numbered by the combinatorial number system. Index tables do
not depend on the board and are made once a size; a board's walls only mask them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb

import jax
import jax.numpy as jnp
import numpy as np

from environments.legend import DELTAS

FAR = np.int16(30000)


@dataclass(frozen=True)
class Indices:
    """Of b boxes on a side x side interior; -1 is off the interior or onto another box.

    cells: [sets, b] sorted cells of each set. pushed: [sets, b, 4] the set after box j went in
    direction d. ahead, behind: [sets, b, 4] the cell on box j's far and near side.
    """

    cells: np.ndarray
    pushed: np.ndarray
    ahead: np.ndarray
    behind: np.ndarray


@lru_cache(maxsize=8)
def binomials(cells: int, boxes: int) -> np.ndarray:
    """C(c, k) for c < cells, k <= boxes."""
    return np.array([[comb(c, k) for k in range(boxes + 1)] for c in range(cells)], np.int32)


def rank(inner: jax.Array, boxes: int) -> jax.Array:
    """Number of a set of boxes, bool [..., n] -> int32 [...]: sum over boxes of C(cell, order)."""
    order = jnp.cumsum(inner.astype(jnp.int32), axis=-1)
    table = jnp.asarray(binomials(inner.shape[-1], boxes))
    terms = table[jnp.arange(inner.shape[-1]), jnp.minimum(order, boxes)]
    return jnp.where(inner, terms, 0).sum(-1)


@lru_cache(maxsize=8)
def indices(side: int, boxes: int) -> Indices:
    """The tables of one size, in numpy."""
    count = side * side
    table = binomials(count, boxes)
    sets = np.array(list(combinations(range(count), boxes)), np.int32)
    ranks = sum(table[sets[:, k], k + 1] for k in range(boxes))
    cells = np.empty_like(sets)
    cells[ranks] = sets
    steps = np.array(DELTAS)
    row, column = np.divmod(cells, side)

    def neighbour(sign: int) -> np.ndarray:
        r = row[..., None] + sign * steps[:, 0]
        c = column[..., None] + sign * steps[:, 1]
        inside = (r >= 0) & (r < side) & (c >= 0) & (c < side)
        return np.where(inside, r * side + c, -1).astype(np.int32)

    ahead, behind = neighbour(1), neighbour(-1)
    occupied = (ahead[..., None] == cells[:, None, None, :]).any(-1)
    free = (ahead >= 0) & ~occupied
    pushed = np.full(ahead.shape, -1, np.int32)
    for j in range(boxes):
        for d in range(4):
            moved = cells.copy()
            moved[:, j] = np.maximum(ahead[:, j, d], 0)
            moved.sort(axis=1)
            number = sum(table[moved[:, k], k + 1] for k in range(boxes))
            pushed[:, j, d] = np.where(free[:, j, d], number, -1)
    return Indices(cells, pushed, np.where(free, ahead, -1), behind)


def distances(walls: jax.Array, goals: jax.Array, boxes: int) -> jax.Array:
    """int16 [sets, n]: fewest moves until all boxes stand on goals; -1 where that is impossible.

    walls and goals: bool [side, side], the interior alone.
    """
    side = walls.shape[0]
    index = indices(side, boxes)
    count, sets = side * side, len(index.cells)
    flat = walls.reshape(-1)
    cells = jnp.asarray(index.cells)
    stands = jnp.zeros((sets, count), bool).at[jnp.arange(sets)[:, None], cells].set(True)
    possible = ~stands & ~flat & ~flat[cells].any(-1)[:, None]
    solved = jnp.arange(sets) == rank(goals.reshape(-1), boxes)
    start = jnp.where(possible & solved[:, None], np.int16(0), FAR)

    ahead, behind, pushed = (jnp.asarray(t) for t in (index.ahead, index.behind, index.pushed))
    can_push = (pushed >= 0) & (behind >= 0) & ~flat[jnp.maximum(ahead, 0)]
    rows = jnp.broadcast_to(jnp.arange(sets)[:, None, None], pushed.shape)
    place = jnp.where(can_push, behind, count)  # out of range: dropped by the scatter

    def relax(values: jax.Array) -> jax.Array:
        grid = jnp.pad(
            values.reshape(sets, side, side), ((0, 0), (1, 1), (1, 1)), constant_values=FAR
        )
        near = jnp.minimum(
            jnp.minimum(grid[:, :-2, 1:-1], grid[:, 2:, 1:-1]),
            jnp.minimum(grid[:, 1:-1, :-2], grid[:, 1:-1, 2:]),
        ).reshape(sets, count)
        after = values[jnp.maximum(pushed, 0), cells[:, :, None]]
        near = near.at[rows, place].min(after, mode="drop")
        better = jnp.minimum(values, jnp.minimum(near, FAR - 1) + np.int16(1))
        return jnp.where(possible, better, FAR)

    def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        values = relax(carry[0])
        return values, (values != carry[0]).any()

    values, _ = jax.lax.while_loop(lambda carry: carry[1], body, (start, jnp.bool_(True)))
    return jnp.where(values >= FAR, np.int16(-1), values)


def lookup(table: jax.Array, boxes: jax.Array, agent: jax.Array, count: int) -> jax.Array:
    """int32 distance of a state: boxes bool [H, W] and agent [2] of the whole board."""
    side = boxes.shape[0] - 2
    cell = (agent[0] - 1) * side + agent[1] - 1
    return table[rank(boxes[1:-1, 1:-1].reshape(-1), count), cell].astype(jnp.int32)
