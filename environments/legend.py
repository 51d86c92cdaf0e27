"""Symbols and moves, stated once: environments, renderers, parser and viewer all read them here."""

MOVES = ("U", "D", "L", "R")
MOVE_NAMES = ("up", "down", "left", "right")
DELTAS = ((-1, 0), (1, 0), (0, -1), (0, 1))  # (row, column); row 0 is the top row

# A move's kind is an index into this tuple (see Game.move_kinds).
KINDS = ("blocked", "walk", "push")

FLOOR, WALL, GOAL = ".", "#", "G"
BOX, BOX_ON_GOAL = "B", "*"
AGENT, AGENT_ON_GOAL = "@", "+"

SOKOBAN_SYMBOLS = {
    WALL: "wall",
    FLOOR: "empty floor",
    GOAL: "goal",
    BOX: "box",
    BOX_ON_GOAL: "box on a goal",
    AGENT: "you",
    AGENT_ON_GOAL: "you, standing on a goal",
}

PLAN_PATH_SYMBOLS = {
    WALL: "obstacle",
    FLOOR: "free cell",
    GOAL: "goal",
    AGENT: "you",
    AGENT_ON_GOAL: "you, standing on the goal",
}


def letters(moves: tuple[int, ...]) -> tuple[str, ...]:
    """Letters of move indices, each index in [0, 4)."""
    return tuple(MOVES[m] for m in moves)


def describe(symbols: dict[str, str]) -> str:
    """One legend line for a prompt: "# wall, . empty floor, ..."."""
    return ", ".join(f"{symbol} {meaning}" for symbol, meaning in symbols.items())
