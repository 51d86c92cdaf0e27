"""Plan-Path in words: compact lines for small policies, grids for language models, pictures."""

from itertools import product

import numpy as np

from environments import legend
from environments.scene import (
    Scene,
    View,
    cell_name,
    geometry_words,
    grid_message,
    last_words,
    offset,
    parse_grid_text,
    words_of,
)

SYMBOLS = legend.PLAN_PATH_SYMBOLS
REACH = 3  # the crop shows this many cells on each side of the agent
RULES = (
    "This is a grid maze: walk to the goal by a short path. You cannot enter an obstacle or leave "
    "the board; such a move is blocked and changes nothing. Rows count from the top, columns from "
    "the left."
)


def vocabulary(
    max_size: int = 10, max_turns: int = 32, roles: tuple[str, ...] = ("tool", "planner", "solo")
) -> tuple[str, ...]:
    """Every word of the compact rendering and of an answer to it, sorted, without repeats."""
    words = {*roles, *legend.MOVES, "[", "]", "agent", "goal", "view", "moves"}
    words |= {"last", "none", "invalid", "moved", "kept", "plan", "then", "open", "solved"}
    words |= {legend.WALL, legend.FLOOR}
    words |= {"".join(cells) for cells in product((legend.WALL, legend.FLOOR), repeat=REACH)}
    words |= {f"t{turn}" for turn in range(max_turns)}
    words |= {f"{move}:{kind}" for move in legend.MOVES for kind in legend.KINDS}
    return tuple(sorted(words | set(geometry_words(max_size))))


def _cell_words(view: View) -> list[str]:
    agent, goal = view["agent"], view["goal"]
    return ["agent", cell_name(agent), "goal", cell_name(goal), offset(goal, agent)]


def crop(view: View) -> list[str]:
    """The cells around the agent, row by row: three to its left, its column, three to its right, a
    word each, "#" where it cannot go, beyond the board included. Few words keep prompts short."""
    blocked = np.pad(view["walls"], REACH, constant_values=True)
    row, column = view["agent"]
    side = 2 * REACH + 1
    symbols = np.where(blocked[row : row + side, column : column + side], legend.WALL, legend.FLOOR)
    lines = ["".join(line) for line in symbols]
    return [part for line in lines for part in (line[:REACH], line[REACH], line[REACH + 1 :])]


def compact(scene: Scene) -> str:
    """One line of space-separated words, all from vocabulary()."""
    view = scene.view
    kinds = zip(legend.MOVES, view["kinds"], strict=True)
    words = [scene.agent.name, f"t{scene.turn}", *_cell_words(view), "view", *crop(view)]
    words += ["moves", *(f"{move}:{legend.KINDS[kind]}" for move, kind in kinds)]
    words += last_words(scene.last)
    for proposal in scene.proposals:
        words += ["plan", *words_of(proposal.moves), "then", *_cell_words(proposal.view)]
        words.append("solved" if proposal.view["solved"] else "open")
    return " ".join(words)


def rows(view: View) -> list[str]:
    """One string of symbols per row; the agent on the goal has its own symbol."""
    symbols = np.where(view["walls"], legend.WALL, legend.FLOOR)
    agent, goal = tuple(view["agent"]), tuple(view["goal"])
    symbols[goal] = legend.GOAL
    symbols[agent] = legend.AGENT_ON_GOAL if agent == goal else legend.AGENT
    return ["".join(row) for row in symbols]


def _only(symbols: np.ndarray, names: tuple[str, ...], what: str) -> np.ndarray:
    cells = np.argwhere(np.isin(symbols, names))
    if len(cells) != 1:
        raise ValueError(f"grid has {len(cells)} cells for the {what}: draw exactly one")
    return cells[0]


def parse_grid(text: str) -> View:
    """Inverse of a rendered grid: walls bool [H, W], agent and goal int [2].

    Raises ValueError for a symbol outside SYMBOLS or other than one agent and one goal.
    """
    symbols = np.array([list(row) for row in parse_grid_text(text)])
    unknown = sorted(set(symbols.flat) - set(SYMBOLS))
    if unknown:
        raise ValueError(f"grid symbols {unknown} are unknown: use those of PLAN_PATH_SYMBOLS")
    return {
        "walls": symbols == legend.WALL,
        "agent": _only(symbols, (legend.AGENT, legend.AGENT_ON_GOAL), "agent"),
        "goal": _only(symbols, (legend.GOAL, legend.AGENT_ON_GOAL), "goal"),
    }


def grid(scene: Scene) -> str:
    """Full instructions, labelled grid, feedback and proposals for a language model."""
    return grid_message(scene, RULES, legend.describe(SYMBOLS), rows)
