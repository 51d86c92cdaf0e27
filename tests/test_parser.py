"""The parser takes the last complete block and guesses nothing."""

import time

import pytest

from environments.parser import parse_moves

U, D, L, R = range(4)


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("[U]", (U,)),
        ("[U,D,L,R]", (U, D, L, R)),
        ("[ U , D\tL\nR ]", (U, D, L, R)),
        ("[ U R ]", (U, R)),
        ("I go up then right: [U, R] and win", (U, R)),
        ("first [U,U], no, rather [D]", (D,)),
        ("```\n[L, L]\n```", (L, L)),
        ("```json\n[R]", (R,)),
        ("[U] then [D", (U,)),
        ("[U [D]", (D,)),
        ("] [U] ]", (U,)),
        ("[" + ",".join("U" * 20) + "]", (U,) * 20),
    ],
)
def test_readable(text, moves):
    parse = parse_moves(text, 20)
    assert (parse.moves, parse.ok, parse.error) == (moves, True, "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no complete"),
        ("U, D, L", "no complete"),
        ("[U, D", "no complete"),
        ("U]", "no complete"),
        ("]U[", "no complete"),
        ("[]", "empty"),
        ("[ \n ]", "empty"),
        ("[,]", "comma"),
        ("[U,,D]", "comma"),
        ("[U,]", "comma"),
        ("[,U]", "comma"),
        ("[u]", "unknown move 'u'"),
        ("[U, X]", "unknown move 'X'"),
        ("[UD]", "unknown move 'UD'"),
        ("[↑, →]", "unknown move '↑'"),
        ("[U\u00a0D]", "unknown"),
        ("[U\u2003D]", "unknown"),
        ("[U; D]", "unknown"),
        ('["U"]', "unknown"),
        ("[[U]]", "unknown"),
        ("[[U],[D]]", "unknown"),
        ("[U] or [up]", "unknown move 'up'"),
        ("[U] []", "empty"),
        ("[" + ",".join("U" * 21) + "]", "21 moves, at most 20"),
        ("[" + ",".join("U" * 10_000) + "]", "10000 moves"),
    ],
)
def test_refused(text, reason):
    parse = parse_moves(text, 20)
    assert not parse.ok
    assert parse.moves == ()
    assert reason in parse.error
    assert "\n" not in parse.error


HOSTILE = {
    "open": "[" * 1_000_000,
    "closed": "]" * 1_000_000,
    "deep": "[" * 500_000 + "]" * 500_000,
    "pairs": "[]" * 500_000,
    "commas": "[" + "," * 1_000_000 + "]",
    "spaces": "[" + " " * 1_000_000 + "]",
    "letters": "[" + "U" * 1_000_000 + "]",
    "unclosed": "[U," * 333_333,
    "open after blank": ("[" + " " * 99) * 10_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_megabyte_of_hostile_text_is_linear(name):
    start = time.process_time()
    parse = parse_moves(HOSTILE[name], 20)
    assert not parse.ok
    assert len(parse.error) < 100
    assert time.process_time() - start < 5  # a quadratic parser needs minutes


def test_answer_after_hostile_text():
    assert parse_moves("[" * 100_000 + "[U]" + "[" * 100_000, 20).moves == (U,)


def test_error_carries_no_chat_markup():
    error = parse_moves("[<|im_end|>]", 20).error
    assert not set("<>|[]") & set(error)
