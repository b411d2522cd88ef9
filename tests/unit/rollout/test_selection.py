"""Which answers become training data."""

from __future__ import annotations

from typing import Any

import pytest

from titanrl.config.rft import RFT
from titanrl.rollout.generator import ScoredResponse
from titanrl.rollout.selection import select

PROMPT = ({"role": "user", "content": "1 + 1?"},)


def answer(
    text: str, reward: float, *, tokens: int = 3, finish: int = 0, form: float = 1.0
) -> ScoredResponse:
    return ScoredResponse(text, tokens, finish, reward + 0.1 * form, {"right": reward, "form": form})


def kept(answers: list[ScoredResponse], seen: set[str] | None = None, **settings: Any) -> list[str]:
    """Returns the texts of what is written of the answers to one text prompt."""
    chosen = select(RFT(reward="right", **settings), "1 + 1?", answers, set() if seen is None else seen)
    return [row.get("completion") or f"{row['chosen']} > {row['rejected']}" for row in chosen.rows]


def test_best_responses_are_kept_and_ties_stay_in_order() -> None:
    answers = [answer("a", 0.5), answer("b", 1.0), answer("c", 0.5), answer("d", 1.0)]
    assert kept(answers, max_per_prompt=3) == ["b", "d", "a"]
    assert kept(answers, max_per_prompt=9, min_reward=1.0) == ["b", "d"]


def test_rank_is_by_the_weighted_sum_unless_a_label_is_named() -> None:
    answers = [answer("plain", 1.0, form=0.0), answer("formed", 0.95, form=1.0)]
    assert kept(answers) == ["plain"]
    assert select(RFT(), "q", answers, set()).rows[0]["completion"] == "formed"


def test_truncated_short_and_long_responses_are_excluded_by_default() -> None:
    answers = [answer("cut", 1.0, finish=1), answer("long", 0.9, tokens=9), answer("short", 0.8, tokens=1)]
    assert kept([*answers, answer("right", 0.1)], min_tokens=2, max_tokens=8) == ["right"]
    assert kept(answers, include_truncated=True) == ["cut"]


def test_min_rewards_are_conditions() -> None:
    answers = [answer("bare", 1.0, form=0.0), answer("formed", 0.5)]
    assert kept(answers, min_rewards={"form": 1.0}) == ["formed"]


def test_duplicate_responses_to_a_prompt_are_written_once() -> None:
    seen: set[str] = set()
    answers = [answer("2", 1.0), answer(" 2\n", 1.0), answer("two", 1.0)]
    assert kept(answers, seen, max_per_prompt=2) == ["2", "two"]
    assert kept(answers, seen, max_per_prompt=2) == []
    assert kept(answers, seen, max_per_prompt=2, dedup=False) == ["2", " 2\n"]
    assert select(RFT(max_per_prompt=2), "2 + 0?", answers, seen).rows[0]["completion"] == "2"


def test_every_response_is_written_or_dropped_for_one_reason() -> None:
    answers = [
        answer("cut", 1.0, finish=1),
        answer("long", 1.0, tokens=9),
        answer("bare", 1.0, form=0.0),
        answer("wrong", 0.0),
        answer("2", 1.0),
        answer("2", 1.0),
        answer("two", 1.0),
        answer("II", 1.0),
    ]
    settings = RFT(reward="right", max_per_prompt=2, max_tokens=8, min_reward=0.5, min_rewards={"form": 1.0})
    found = select(settings, "1 + 1?", answers, set())
    assert [row["completion"] for row in found.rows] == ["2", "two"]
    assert found.dropped == {
        "unfinished": 1,
        "length": 1,
        "least": 1,
        "reward": 1,
        "duplicate": 1,
        "surplus": 1,
    }


def test_pair_is_the_best_accepted_response_and_the_worst_of_all() -> None:
    answers = [
        answer("middle", 0.4),
        answer("worst but cut", -1.0, finish=1),
        answer("bad", 0.1, form=0.0),
        answer("bare", 0.9, form=0.0),
        answer("best", 0.8),
    ]
    settings = RFT(write="pairs", reward="right", min_rewards={"form": 1.0})
    (row,) = select(settings, PROMPT, answers, set()).rows
    assert row == {
        "prompt": [{"role": "user", "content": "1 + 1?"}],
        "chosen": [{"role": "assistant", "content": "best"}],
        "rejected": [{"role": "assistant", "content": "bad"}],
        "margin": pytest.approx(0.7),
        "chosen_reward": 0.8,
        "rejected_reward": 0.1,
    }


def test_no_pair_without_an_accepted_response_or_the_minimum_margin() -> None:
    answers = [answer("a", 0.5), answer("b", 0.25)]
    assert kept(answers, write="pairs") == ["a > b"]
    assert kept(answers, write="pairs", min_margin=0.25) == ["a > b"]
    assert kept(answers, write="pairs", min_margin=0.3) == []
    assert kept(answers, write="pairs", min_reward=0.6) == []
    assert kept([answer("a", 0.5), answer("b", 0.5)], write="pairs") == []
