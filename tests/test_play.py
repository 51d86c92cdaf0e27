"""Plain play and held-out evaluation."""

import numpy as np
import pytest

from atgrpo_jax.evaluate import evaluate, wilson
from atgrpo_jax.rollout.play import play
from tests.runs import toy
from tests.scripted_sampler import ScriptedSampler, digit, policy
from tests.toy_task import CHAIN, LONE, ToyTask


def unscored():
    return ToyTask(score_error=AssertionError("evaluation looked at a reward"))


def run(workflow=LONE, reply=digit, ids=range(20), **changes):
    settings = {"seed": 3, "heldout": True, "turns": 3, "temperature": 1.0, "max_new_tokens": 8}
    router = {agent.name: "team" for agent in workflow.agents}
    return play(
        unscored(), workflow, {"team": policy()}, router, ScriptedSampler(reply), np.array(ids),
        **{**settings, **changes},
    )  # fmt: skip


def test_no_reward_is_looked_at_and_one_response_is_drawn():
    played = run(reply=lambda text, k, key: text.split()[2])
    assert played.success_E.all()
    assert (played.turns_E == 1).all()


def test_turns_are_counted_to_the_end_of_each_episode():
    played = run(reply=lambda text, k, key: text.split()[2] if text.split()[1] == "1" else "x")
    assert (played.turns_E == 2).all()
    assert (played.moves_E == 2).all()
    assert not run(reply=lambda *_: "x").success_E.any()


def test_the_same_seed_plays_the_same_games_whatever_the_chunk():
    whole, part = run(ids=range(20)), run(ids=range(10, 20))
    np.testing.assert_array_equal(whole.turns_E[10:], part.turns_E)
    np.testing.assert_array_equal(whole.success_E[10:], part.success_E)


def test_evaluation_in_chunks_counts_every_board_once(monkeypatch):
    monkeypatch.setattr("atgrpo_jax.evaluate.CHUNK", 8)
    router = {"first": "team", "second": "team"}

    def score(episodes):
        return evaluate(
            unscored(), CHAIN, {"team": policy()}, router, ScriptedSampler(digit), toy(),
            episodes=episodes, temperature=1.0,
        )  # fmt: skip

    assert score(20)["evaluate/episodes"] == 20
    wins = {n: score(n)["evaluate/success"] * n for n in (8, 16, 20)}
    assert wins[8] <= wins[16] <= wins[20]
    assert wins[20] == pytest.approx(round(wins[20]))


def test_wilson_interval_against_published_values():
    # Newcombe (1998), table I: 81 of 263 and 0 of 20.
    low, high = wilson(81, 263, z=1.959964)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    low, high = wilson(0, 20, z=1.959964)
    assert (round(low, 4), round(high, 4)) == (0.0, 0.1611)
