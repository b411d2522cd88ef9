"""after_thoughts: a reward reads only what follows closed thoughts."""

from __future__ import annotations

from typing import Annotated

import pytest

from tests.unit.rollout.test_rewards import make
from titanrl import ConfigError, build
from titanrl.config.tables import Reward
from titanrl.ops.thoughts import after_thoughts
from titanrl.registry.decode import Flattened, decode
from titanrl.rollout.rewards import score_rewards


@pytest.mark.parametrize(
    ("response", "scored_text"),
    [
        ("<think>2+2</think>4", "4"),
        ("2+2</think>4", "4"),  # The template has written the opening tag.
        ("<think>a</think>3<think>b</think>4", "4"),
        ("<think>2+2 = 4", ""),
        ("the answer is 4", ""),
        ("<think>a</think>5 <think>wait, 4", "5 "),
        ("<think></think>", ""),
    ],
)
def test_thoughts_that_end_are_cut_off_and_others_leave_nothing(response: str, scored_text: str) -> None:
    assert after_thoughts(response) == scored_text


def test_reward_reads_only_what_follows_closed_thoughts() -> None:
    """Another reward on the same batch sees the whole response."""
    term = Reward(
        component=build("reward", {"name": "exact_match", "extract": "number"}), after_thoughts=True
    )
    whole = Reward(component=build("reward", {"name": "exact_match", "extract": "number"}), label="whole")
    batch = make("<think>5</think>4", "<think>it is 4", "<think>4</think>5", "4")
    scores = score_rewards(batch, [term, whole]).scores
    assert scores["rewards", "exact_match"].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert scores["rewards", "whole"].tolist() == [1.0, 1.0, 0.0, 1.0]
    assert batch["text", "response"][0] == "<think>5</think>4"


def test_reward_that_reads_no_text_refuses_after_thoughts() -> None:
    with pytest.raises(ConfigError, match="after_thoughts is not used by reward 'unfinished'"):
        decode(Annotated[Reward, Flattened("reward")], {"name": "unfinished", "after_thoughts": True})
