"""Strict reading of a reply: the last complete `[...]` block, nothing guessed."""

import re
from dataclasses import dataclass

from environments.legend import MOVES

INDEX = {letter: index for index, letter in enumerate(MOVES)}
SPACES = " \t\r\n"
BRACKETS = re.compile(r"[\[\]]")
# Errors are shown in the next prompt, where a chat template's own marks must not appear.
MARKUP = re.compile(r"[<>|\[\]{}]")


@dataclass(frozen=True)
class Parse:
    """A reply as move indices; not ok: moves is empty and error names the reason in one line."""

    moves: tuple[int, ...]
    ok: bool
    error: str = ""


def last_block(text: str) -> str | None:
    """Inside of the complete `[...]` block that closes last; None without one.

    Brackets are matched, so a nested block is returned with its inner brackets (and is then
    refused as a list of moves), and a stray or unclosed bracket is not a block. Linear time.
    """
    opened: list[int] = []
    block: tuple[int, int] | None = None
    for match in BRACKETS.finditer(text):
        if match.group() == "[":
            opened.append(match.start())
        elif opened:
            block = (opened.pop() + 1, match.start())
    return text[slice(*block)] if block else None


def _word_moves(field: str) -> list[str]:
    return [word for word in re.split(f"[{SPACES}]+", field) if word]


def parse_moves(text: str, max_moves: int) -> Parse:
    """Moves of the last complete block of a reply; linear in the length of the text.

    Upper-case letters of legend.MOVES, separated by one comma, ASCII white space, or both.
    """
    block = last_block(text)
    if block is None:
        return Parse((), False, "no complete [...] block")
    fields = [_word_moves(field) for field in block.split(",")]
    if fields == [[]]:
        return Parse((), False, "empty list")
    if not all(fields):
        return Parse((), False, "a comma without a move beside it")
    words = [word for field in fields for word in field]
    unknown = next((word for word in words if word not in INDEX), None)
    if unknown is not None:
        shown = MARKUP.sub("?", unknown[:12])
        return Parse((), False, f"unknown move {shown!r}, moves are {' '.join(MOVES)}")
    if len(words) > max_moves:
        return Parse((), False, f"{len(words)} moves, at most {max_moves} are allowed")
    return Parse(tuple(INDEX[word] for word in words), True)
