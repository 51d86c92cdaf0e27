"""What a renderer is told about one environment, and the grid format both games share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from environments.legend import MOVE_NAMES, MOVES, letters

View = dict[str, np.ndarray]  # one environment's Game.view, on the host


@dataclass(frozen=True)
class Proposal:
    """A list another agent proposed this turn, and the board it would lead to if executed."""

    agent: str
    moves: tuple[int, ...] | None  # None: the reply held no readable list
    blocked: int
    view: View


@dataclass(frozen=True)
class Effect:
    """The last executed list and what it did."""

    moves: tuple[int, ...] | None  # None: the reply held no readable list
    blocked: int
    moved: bool
    error: str = ""


@dataclass(frozen=True)
class Scene:
    """Everything one agent is shown in one turn. agent is an atgrpo_jax.workflows.Agent."""

    agent: Any
    turn: int
    view: View
    proposals: tuple[Proposal, ...]
    last: Effect | None
    max_moves: int


def offset(cell: np.ndarray, origin: np.ndarray) -> str:
    """Signed row and column distance, "+2-1"."""
    return f"{int(cell[0] - origin[0]):+d}{int(cell[1] - origin[1]):+d}"


def cell_name(cell: np.ndarray) -> str:
    """ "r2c3"; rows and columns count from 0 at the top left."""
    return f"r{int(cell[0])}c{int(cell[1])}"


def words_of(moves: tuple[int, ...] | None) -> list[str]:
    """Letters of a list; ["invalid"] for an unreadable one."""
    return ["invalid"] if moves is None else list(letters(moves))


def last_words(last: Effect | None) -> list[str]:
    """Compact feedback: "last none", or "last U R moved"."""
    if last is None:
        return ["last", "none"]
    return ["last", *words_of(last.moves), "moved" if last.moved else "kept"]


def geometry_words(max_size: int) -> list[str]:
    """Every cell name and offset of boards up to max_size x max_size."""
    size, reach = range(max_size), range(1 - max_size, max_size)
    cells = [f"r{r}c{c}" for r in size for c in size]
    return cells + [f"{r:+d}{c:+d}" for r in reach for c in reach]


def grid_text(rows: list[str]) -> str:
    """Symbol rows with row and column labels."""
    header = "    " + " ".join(f"{c:>2}" for c in range(len(rows[0])))
    body = [f"{r:>3} " + " ".join(f"{s:>2}" for s in row) for r, row in enumerate(rows)]
    return "\n".join([header, *body])


def parse_grid_text(text: str) -> list[str]:
    """Inverse of grid_text. Raises ValueError when a row label is out of order."""
    rows = []
    for number, line in enumerate(text.splitlines()[1:]):
        label, *symbols = line.split()
        if label != str(number):
            raise ValueError(f"grid row {number} is labelled {label!r}: pass grid_text's output")
        rows.append("".join(symbols))
    return rows


def answer_rule(max_moves: int) -> str:
    """The parser's rule as the prompt states it."""
    names = ", ".join(f"{m} {name}" for m, name in zip(MOVES, MOVE_NAMES, strict=True))
    return (
        f"Moves: {names}. End your reply with one list of 1 to {max_moves} moves in square "
        "brackets, for example [U,R,D]. Only the last [...] block counts; inside it write nothing "
        "but the capital letters separated by commas."
    )


def role_rule(agent: Any) -> str:
    """What happens to this agent's list."""
    if not agent.acts:
        return (
            f"You are the {agent.name}. Propose the best list of moves. It is simulated, not "
            "executed: a teammate sees your list and its simulated result and decides."
        )
    rule = f"You are the {agent.name}. The list of moves you answer is executed on the board."
    if agent.sees:
        rule += (
            " Teammates have proposed lists that were simulated, not executed: check them, then "
            "repeat, repair or replace them."
        )
    return rule


def list_text(moves: tuple[int, ...] | None) -> str:
    """ "[U,R]", or words for an unreadable list."""
    return "no readable list" if moves is None else "[" + ",".join(letters(moves)) + "]"


def last_text(last: Effect | None) -> str:
    """Feedback on the last executed list, one sentence."""
    if last is None:
        return "No moves have been executed yet."
    if last.moves is None:
        return f"Your team's last reply was not executed ({last.error}). The board did not change."
    change = "the board changed" if last.moved else "the board did not change"
    return f"The last executed list was {list_text(last.moves)}: {last.blocked} blocked, {change}."


def grid_message(scene: Scene, rules: str, symbols: str, rows: Callable[[View], list[str]]) -> str:
    """The whole user message of the grid rendering; rows draws a view."""
    lines = [role_rule(scene.agent), rules, f"Legend: {symbols}.", answer_rule(scene.max_moves)]
    lines += ["", f"Turn {scene.turn + 1}. {last_text(scene.last)}", "Board:"]
    lines.append(grid_text(rows(scene.view)))
    for proposal in scene.proposals:
        verdict = "solved" if proposal.view["solved"] else "not solved"
        lines += [
            "",
            f"Proposal of the {proposal.agent}: {list_text(proposal.moves)}. Simulated result "
            f"({proposal.blocked} blocked, {verdict}):",
            grid_text(rows(proposal.view)),
        ]
    return "\n".join(lines)
