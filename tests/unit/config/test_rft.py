"""The [rft] table against itself and against the other tables."""

from __future__ import annotations

import re
from typing import Any

import pytest

from titanrl import build
from titanrl.config.rft import RFT, rft_problems
from titanrl.config.tables import Reward


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples_per_prompt": 0}, "samples_per_prompt must be in [1, inf), got 0."),
        ({"write": "pairs", "samples_per_prompt": 1}, "samples_per_prompt must be >= 2 for pairs, got 1."),
        (
            {"write": "pairs", "max_per_prompt": 2},
            "max_per_prompt is not used with write = 'pairs'; leave it out.",
        ),
        ({"min_margin": 0.5}, "min_margin is not used with write = 'responses'; leave it out."),
        ({"min_tokens": 4, "max_tokens": 3}, "max_tokens must be in [4, inf), got 3."),
        ({"min_reward": float("inf")}, "min_reward must be in [-inf, inf), got inf."),
    ],
)
def test_rft_values_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        RFT(**settings)


def test_rft_labels_must_name_rewards() -> None:
    rewards = (Reward(component=build("reward", {"name": "exact_match"}), label="right"),)
    assert rft_problems(RFT(reward="right", min_rewards={"right": 1.0}), None, rewards, None) == []
    found = [
        str(each)
        for each in rft_problems(RFT(reward="rigth", min_rewards={"form": 1.0}), None, rewards, None)
    ]
    assert found == [
        "[rft] reward must name the label of a [[reward]], got 'rigth'; did you mean 'right'? labels: right.",
        "[rft] min_rewards must name the label of a [[reward]], got 'form'; labels: right.",
    ]


def test_rft_requires_rewards_and_prompts() -> None:
    (problem,) = rft_problems(RFT(), None, (), None)
    assert str(problem) == "[rft] needs a [[reward]] that scores the responses; add one."
