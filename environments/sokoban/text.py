"""Sokoban in words: compact lines for small policies, grids for language models, board pictures."""

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

SYMBOLS = legend.SOKOBAN_SYMBOLS
RULES = (
    "This is Sokoban: push every box onto a goal. You push a box by walking into it; you cannot "
    "pull, push two boxes at once, or push into a wall. A blocked move changes nothing. Rows "
    "count from the top, columns from the left."
)


def vocabulary(
    max_size: int = 10, max_turns: int = 32, roles: tuple[str, ...] = ("tool", "planner", "solo")
) -> tuple[str, ...]:
    """Every word of the compact rendering and of an answer to it, sorted, without repeats."""
    words = {*roles, *legend.MOVES, "[", "]", "agent", "box", "boxgoal", "goal", "wall", "moves"}
    words |= {"last", "none", "invalid", "moved", "kept", "plan", "then", "open", "solved"}
    words |= {f"t{turn}" for turn in range(max_turns)}
    words |= {f"{move}:{kind}" for move in legend.MOVES for kind in legend.KINDS}
    words |= {"to", *(_sides(np.array(bits)) for bits in np.ndindex(2, 2, 2, 2))}
    return tuple(sorted(words | set(geometry_words(max_size))))


def _sides(open_4: np.ndarray) -> str:
    """One word for which of a box's four neighbours are free: "open:UL", "open:none"."""
    names = [move for move, is_open in zip(legend.MOVES, open_4, strict=True) if is_open]
    return "open:" + ("".join(names) or "none")


def _cell_words(view: View) -> list[str]:
    """Agent, every box and every open goal with its cell and its offset from the agent; a box
    also with the way to the nearest open goal and its free neighbours, which say how it can go.
    """
    agent, goals, boxes = view["agent"], view["goals"], view["boxes"]
    free, targets = ~view["walls"] & ~boxes, np.argwhere(goals & ~boxes)
    words = ["agent", cell_name(agent)]
    for cell in np.argwhere(boxes):
        sides = _sides(np.array([free[tuple(cell + delta)] for delta in legend.DELTAS]))
        words += ["boxgoal" if goals[tuple(cell)] else "box", cell_name(cell), offset(cell, agent)]
        if not goals[tuple(cell)]:
            words += ["to", offset(targets[np.abs(targets - cell).sum(-1).argmin()], cell)]
        words.append(sides)
    for cell in targets:
        words += ["goal", cell_name(cell), offset(cell, agent)]
    return words


def compact(scene: Scene) -> str:
    """One line of space-separated words, all from vocabulary()."""
    view = scene.view
    inner = np.argwhere(view["walls"][1:-1, 1:-1]) + 1
    kinds = zip(legend.MOVES, view["kinds"], strict=True)
    words = [scene.agent.name, f"t{scene.turn}", *_cell_words(view)]
    words += ["wall", *([offset(cell, view["agent"]) for cell in inner] or ["none"])]
    words += ["moves", *(f"{move}:{legend.KINDS[kind]}" for move, kind in kinds)]
    words += last_words(scene.last)
    for proposal in scene.proposals:
        words += ["plan", *words_of(proposal.moves), "then", *_cell_words(proposal.view)]
        words.append("solved" if proposal.view["solved"] else "open")
    return " ".join(words)


def rows(view: View) -> list[str]:
    """One string of symbols per row; box and agent on a goal have their own symbols."""
    goals = view["goals"]
    symbols = np.full(goals.shape, legend.FLOOR)
    symbols[view["walls"]] = legend.WALL
    symbols[goals] = legend.GOAL
    symbols[view["boxes"]] = legend.BOX
    symbols[view["boxes"] & goals] = legend.BOX_ON_GOAL
    agent = tuple(view["agent"])
    symbols[agent] = legend.AGENT_ON_GOAL if goals[agent] else legend.AGENT
    return ["".join(row) for row in symbols]


def parse_grid(text: str) -> View:
    """Inverse of a rendered grid: walls, goals, boxes bool [H, W] and agent int [2].

    Raises ValueError for a symbol outside SYMBOLS or other than one agent.
    """
    symbols = np.array([list(row) for row in parse_grid_text(text)])
    unknown = sorted(set(symbols.flat) - set(SYMBOLS))
    if unknown:
        raise ValueError(f"grid symbols {unknown} are unknown: use those of SOKOBAN_SYMBOLS")
    agents = np.argwhere(np.isin(symbols, [legend.AGENT, legend.AGENT_ON_GOAL]))
    if len(agents) != 1:
        raise ValueError(f"grid has {len(agents)} agents: draw exactly one")
    goals = [legend.GOAL, legend.BOX_ON_GOAL, legend.AGENT_ON_GOAL]
    return {
        "walls": symbols == legend.WALL,
        "goals": np.isin(symbols, goals),
        "boxes": np.isin(symbols, [legend.BOX, legend.BOX_ON_GOAL]),
        "agent": agents[0],
    }


def grid(scene: Scene) -> str:
    """Full instructions, labelled grid, feedback and proposals for a language model."""
    return grid_message(scene, RULES, legend.describe(SYMBOLS), rows)
