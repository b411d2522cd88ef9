"""Intervals of the held-out score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.training.sessions import OneProcess, session_of
from tests.unit.training.test_stages import CountedLetters, length_reward
from titanrl import build
from titanrl.config.tables import Evaluation, Reward
from titanrl.data.prompts import PromptLoader
from titanrl.eval.evaluate import EvalResult, evaluate
from titanrl.protocols import Completion, Prompt, RolloutRequest


def test_two_models_are_compared_prompt_by_prompt():
    def verdict(*scores: float) -> EvalResult:
        return EvalResult("a", len(scores), 0, {}, {}, scores, "abcd"[: len(scores)])

    # By hand: two of four pairs are better; with one added pair of each kind 3 of 8 are, and 1 is worse.
    found = verdict(1.0, 1.0, 0.0, 1.0).minus(verdict(1.0, 0.0, 0.0, 0.0))
    half = 2 * math.sqrt(4 - 8 * 0.25**2) / 8
    assert found == pytest.approx((0.5, 0.25 - half, min(0.25 + half, 1.0)))
    # Where one is better by as much everywhere, the interval is short, however unlike the prompts are.
    found = EvalResult("a", 60, 0, {}, {}, [0.25, 0.75, 1.0] * 20, range(60)).minus(
        EvalResult("b", 60, 0, {}, {}, [0.0, 0.5, 0.75] * 20, range(60))
    )
    assert found.mean == pytest.approx(0.25)
    assert 0.1 < found.low < 0.25 < found.high < 0.4


class GroupLetters(CountedLetters):
    """Responses of one, two, ... letters to a prompt; one of them has the four letters that are correct."""

    def sample(self, rows: Sequence[RolloutRequest], **_: Any) -> list[Completion]:
        return super().sample(rows, step=0, seed=0, greedy=False)


def encode(prompt: Any) -> list[int]:
    return [ord(prompt.messages)]


def group_metrics(samples: int, best_of_reward: str | None = None) -> dict[str, float]:
    """Return the metrics of three prompts; the rewards are 1 for four letters, and 1 for five."""
    prompts = [Prompt(letter) for letter in "abc"]
    feed = PromptLoader(prompts, encode, seed=0, max_prompt_tokens=4, shuffle=False)  # type: ignore[arg-type]
    settings = Evaluation(
        num_prompts=3, samples_per_prompt=samples, temperature=1.0, best_of_reward=best_of_reward
    )
    five = Reward(component=build("reward", {"name": "format_regex", "pattern": "a{5}"}), label="y")
    context = session_of(
        OneProcess(),
        rewards=(length_reward(2.0, "x"), five),
        sampler_table=build("sampler", {"name": "scripted", "max_response_tokens": 8}),
        live_sampler=GroupLetters(),
    )
    return evaluate(context, settings, feed).metrics()


def test_several_responses_per_prompt_give_pass_at_k():
    metrics = group_metrics(6)
    passes = {name: value for name, value in metrics.items() if "pass" in name}
    # One of 6 is right: 5 of 15 pairs hold it, 10 of 15 fours, and all together.
    assert passes == {
        "eval/pass_at_2": pytest.approx(1 / 3),
        "eval/pass_at_4": pytest.approx(2 / 3),
        "eval/pass_at_6": 1.0,
    }
    assert metrics["eval/score"] == pytest.approx(1 / 6)


def test_best_of_reward_selects_the_best_response():
    right = group_metrics(6, "x")
    assert [right[f"eval/best_of_{k}"] for k in (2, 4, 6)] == [right[f"eval/pass_at_{k}"] for k in (2, 4, 6)]
    # One that likes five letters chooses among the other answers blindly where those are not drawn:
    # of 15 pairs 5 hold the five, 4 of the other 10 the four, and one of two is taken.
    wrong = group_metrics(6, "y")
    assert wrong["eval/best_of_2"] == pytest.approx(4 / 15 / 2)
    assert wrong["eval/best_of_6"] == 0.0
    assert not [name for name in group_metrics(6) if "best_of" in name]


def test_interval_counts_prompts_and_not_responses():
    few, many = group_metrics(6), group_metrics(12)
    assert few["eval/num_prompts"] == many["eval/num_prompts"]
    assert many["eval/score_low"] < 0.5 * many["eval/score"], "so few prompts say little"


def test_one_response_per_prompt_gives_no_pass_at_k():
    assert not [name for name in group_metrics(1) if "pass" in name]


def test_responses_without_a_score_are_counted_and_part_of_no_estimate():
    """The reward fails on the longest of four responses to each prompt, and on all responses to the last."""

    def breaks(batch: Any) -> list[float | None]:
        rows = zip(batch["text", "response"], batch["text", "prompt"], strict=True)
        return [None if len(text) == 4 or prompt == "c" else float(len(text) == 2) for text, prompt in rows]

    prompts = [Prompt(letter) for letter in "abc"]
    feed = PromptLoader(prompts, encode, seed=0, max_prompt_tokens=4, shuffle=False)  # type: ignore[arg-type]
    term = length_reward(2.0, "x")
    object.__setattr__(term, "component", breaks)
    object.__setattr__(term, "on_failure", "unscored")
    context = session_of(
        OneProcess(),
        rewards=(term, length_reward(1.0, "y")),
        sampler_table=build("sampler", {"name": "scripted", "max_response_tokens": 8}),
        live_sampler=GroupLetters(),
    )
    settings = Evaluation(num_prompts=3, samples_per_prompt=4, temperature=1.0, best_of_reward="y")
    result = evaluate(context, settings, feed)
    metrics = result.metrics()
    assert metrics["eval/score"] == pytest.approx(1 / 3)  # Of two prompts with three scores each.
    assert metrics["eval/pass_at_2"] == pytest.approx(2 / 3)
    assert "eval/pass_at_4" not in metrics  # No prompt has four scores.
    assert metrics["eval/reward_y_mean"] == 0.25
    assert (metrics["eval/unscored_responses"], metrics["eval/reward_failures"]) == (6.0, 6.0)
    assert math.isnan(result.scores[2])
    assert result.to_json()["pass_at_4"]["mean"] is None
    assert result.minus(result).mean == 0.0
