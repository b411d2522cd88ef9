"""What rewards take for the answer in a response, by which majority votes are counted."""

from __future__ import annotations

import pytest

from titanrl import build


@pytest.mark.parametrize(
    ("reward", "response", "answer"),
    [
        ({"name": "exact_match", "extract": "number"}, "7 + 5 = 12.", 12.0),
        ({"name": "exact_match", "extract": "number"}, "no idea", None),
        ({"name": "exact_match"}, r"\boxed{ A  b }", "a b"),
        ({"name": "exact_match"}, "a b", None),
        ({"name": "reasoning_gym", "dataset": "chain_sum", "extract": "number"}, "7 + 5 = 12.", "12"),
        ({"name": "reasoning_gym", "dataset": "chain_sum"}, "<answer> 12 </answer>", "12"),
    ],
)
def test_reward_extracts_the_answer_of_a_response(reward, response, answer):
    assert build("reward", reward).answer_of(response) == answer
