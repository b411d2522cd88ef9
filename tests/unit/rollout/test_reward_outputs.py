"""Rewards per token and rewards with several outputs: keys, failures, and their way to the advantage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from tensordict import TensorDict

import titanrl
from titanrl import ConfigError
from titanrl.algorithm.compute_advantages import compute_advantages
from titanrl.algorithm.reward_scaling import RewardScaling
from titanrl.algorithm.table import Algorithm
from titanrl.algorithm.token_rewards import add_token_rewards
from titanrl.config.tables import Reward
from titanrl.protocols.batch import KEYS, Key
from titanrl.rollout.rewards import score_rewards

MASK = torch.tensor([[0, 1, 1, 1], [1, 1, 0, 0]], dtype=torch.bool)
"""A prompt of two tokens with three response tokens, and one of one token with two."""


def make(*responses: str) -> TensorDict:
    batch = {"loss_mask": MASK[: len(responses)], "text": {"response": list(responses)}}
    return TensorDict(batch, batch_size=[len(responses)])


@dataclass(frozen=True)
class PerToken:
    """Scores the steps of a response: 0.3, 0.1 and -0.6 in turn, 9 where masked."""

    per_token: ClassVar[bool] = True

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        if "bad" in list(batch["text", "response"]):
            raise ValueError("no steps")
        steps = torch.tensor([[9.0, 0.3, 0.1, -0.6], [0.3, 0.1, 9.0, 9.0]])
        return steps[: len(batch)]


@dataclass(frozen=True)
class Judge:
    """Gives two grades at once."""

    outputs: ClassVar[tuple[str, ...]] = ("overall", "style")

    def __call__(self, batch: TensorDict) -> dict[str, torch.Tensor]:
        lengths = torch.tensor([float(len(text)) for text in batch["text", "response"]])
        style = torch.tensor([float("nan") if text == "bad" else 0.5 for text in batch["text", "response"]])
        return {"style": style, "overall": lengths}


@dataclass(frozen=True)
class ReadsStyle:
    """Doubles the judge's grade of style."""

    in_keys: ClassVar[tuple[tuple[str, str], ...]] = (("rewards", "judge.style"),)

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        return 2 * batch["rewards", "judge.style"]


def term(component: Any, label: str, weight: float = 1.0) -> Reward:
    return Reward(component=component, label=label, weight=weight)


def test_per_token_reward_counts_as_its_sum_over_the_response() -> None:
    scores = score_rewards(make("a", "b"), [term(PerToken(), "steps", 0.5)]).scores
    torch.testing.assert_close(scores["rewards", "steps"], torch.tensor([-0.2, 0.4]))
    torch.testing.assert_close(scores["reward"], torch.tensor([-0.1, 0.2]))
    expected = torch.tensor([[0.0, 0.15, 0.05, -0.3], [0.15, 0.05, 0.0, 0.0]])
    torch.testing.assert_close(scores["token_rewards", "steps"], expected)


def test_row_on_which_a_per_token_reward_fails_scores_failure_on_its_last_response_token() -> None:
    failing = Reward(component=PerToken(), label="steps", weight=2.0, failure_score=-1.5)
    scores, reasons = score_rewards(make("a", "bad"), [failing])
    torch.testing.assert_close(scores["rewards", "steps"], torch.tensor([-0.2, -1.5]))
    expected = torch.tensor([[0.0, 0.6, 0.2, -1.2], [0.0, -3.0, 0.0, 0.0]])
    torch.testing.assert_close(scores["token_rewards", "steps"], expected)
    assert reasons == {"steps": {1: "ValueError: no steps"}}


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (torch.ones(2), "returned torch.float32 of shape [2], not one number per token, [2, 4]"),
        (torch.ones(2, 5), "returned torch.float32 of shape [2, 5], not one number per token, [2, 4]"),
    ],
)
def test_per_token_reward_of_another_shape_fails(result: torch.Tensor, reason: str) -> None:
    class Wrong(PerToken):
        def __call__(self, batch: TensorDict) -> torch.Tensor:
            return result

    _, reasons = score_rewards(make("a", "b"), [term(Wrong(), "steps")])
    assert reasons["steps"][0] == reason.replace("[2, 4]", "[1, 4]")


def test_per_token_reward_that_is_not_finite_at_a_response_token_fails_in_that_row_alone() -> None:
    class Infinite(PerToken):
        def __call__(self, batch: TensorDict) -> torch.Tensor:
            return torch.tensor([[torch.nan, 1.0, 2.0, 3.0], [1.0, torch.inf, torch.nan, 0.0]])

    scores, reasons = score_rewards(make("a", "b"), [term(Infinite(), "steps")])
    assert scores["rewards", "steps"].tolist() == [6.0, 0.0]
    assert reasons == {"steps": {1: "returned inf at label position 1"}}


def test_first_output_is_the_reward_and_every_output_is_reported() -> None:
    scores = score_rewards(make("aaa", "b"), [term(Judge(), "judge", 0.5)]).scores
    assert scores["reward"].tolist() == [1.5, 0.5]
    assert scores["rewards", "judge"].tolist() == scores["rewards", "judge.overall"].tolist() == [3.0, 1.0]
    assert scores["rewards", "judge.style"].tolist() == [0.5, 0.5]


def test_row_with_one_bad_output_scores_failure_in_all() -> None:
    failing = Reward(component=Judge(), label="judge", failure_score=-1.0)
    scores, reasons = score_rewards(make("aaa", "bad"), [failing])
    assert scores["rewards", "judge"].tolist() == [3.0, -1.0]
    assert scores["rewards", "judge.style"].tolist() == [0.5, -1.0]
    assert reasons == {"judge": {1: "returned nan for 'style'"}}


def test_reward_may_read_another_ones_output() -> None:
    terms = [term(ReadsStyle(), "double"), term(Judge(), "judge", 0.0)]
    assert score_rewards(make("a", "b"), terms).scores["reward"].tolist() == [1.0, 1.0]


def test_output_that_is_not_declared_fails() -> None:
    class Misspelt(Judge):
        def __call__(self, batch: TensorDict) -> dict[str, torch.Tensor]:
            return {"overal": torch.ones(len(batch)), "style": torch.ones(len(batch))}

    _, reasons = score_rewards(make("a"), [term(Misspelt(), "judge")])
    declared = "not a mapping with the declared names ['overall', 'style']"
    assert reasons == {"judge": {0: f"returned ['overal', 'style'], {declared}"}}


def test_reward_writes_registered_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KEYS, "num_steps", Key("[N]", "int64", "score", "steps of the response"))

    @dataclass(frozen=True)
    class Counts:
        out_keys: ClassVar[tuple[str, ...]] = ("num_steps",)

        def __call__(self, batch: TensorDict) -> dict[str, torch.Tensor]:
            return {"reward": torch.ones(len(batch)), "num_steps": torch.full((len(batch),), 3)}

    scores = score_rewards(make("a", "b"), [term(Counts(), "counts")]).scores
    assert (scores["reward"].tolist(), scores["num_steps"].tolist()) == ([1.0, 1.0], [3, 3])
    assert scores["num_steps"].dtype == torch.int64


def test_per_token_and_outputs_together_are_refused() -> None:
    class Both(Judge):
        per_token: ClassVar[bool] = True

    with pytest.raises(ConfigError, match="'judge' declares per_token and outputs, got overall, style"):
        score_rewards(make("a"), [term(Both(), "judge")])


# ------------------------------------------------------------------------------- the way to the advantage


def test_per_token_rewards_move_from_the_last_token_to_their_positions() -> None:
    """Row 0: a per-token reward -0.2 at weight 0.5 and a row reward 0.7, 0.6 in all."""
    parts = torch.tensor([[0.0, 0.15, 0.05, -0.3], [0.0, 0.0, 0.0, 0.0]])
    batch = TensorDict({"loss_mask": MASK, "token_rewards": {"steps": parts}}, batch_size=[2])
    placed = torch.tensor([[0.0, 0.0, 0.0, 0.6], [0.0, 0.25, 0.0, 0.0]])
    expected = torch.tensor([[0.0, 0.15, 0.05, 0.4], [0.0, 0.25, 0.0, 0.0]])
    torch.testing.assert_close(add_token_rewards(placed, batch), expected)
    halved = torch.tensor([[0.0, 0.075, 0.025, 0.5], [0.0, 0.25, 0.0, 0.0]])
    torch.testing.assert_close(add_token_rewards(placed, batch, 0.5), halved)


def algorithm(advantage: dict[str, Any], scaling: RewardScaling | None = None) -> Algorithm:
    return Algorithm(
        loss=titanrl.build("loss", {"name": "reinforce"}),
        aggregation=titanrl.build("aggregation", {"name": "token_mean"}),
        advantage=titanrl.build("advantage", advantage),
        reward_scaling=scaling,
    )


def scored_batch(value: torch.Tensor) -> TensorDict:
    """Returns a batch with a per-token reward (weight 0.5) and the judge's grade (weight 0.1)."""
    batch = make("aaa", "bb")
    batch["group_id"] = torch.tensor([0, 0])
    batch["value"] = value
    scores = score_rewards(batch, [term(PerToken(), "steps", 0.5), term(Judge(), "judge", 0.1)]).scores
    return batch.update(scores).exclude("text")


@pytest.mark.slow
def test_gae_discounts_per_token_rewards_from_their_own_positions() -> None:
    """By hand: gamma .5, lambda .5, r = (.15, .05, -.3 + .3), (.15, .05 + .2), V = (.1, .2, .3), (.4, .6).

    Row 0: deltas .15 + .5 * .2 - .1 = .15, .05 + .5 * .3 - .2 = 0, 0 - .3 = -.3;
    advantages -.3, 0 + .25 * -.3 = -.075, .15 + .25 * -.075 = .13125.
    Row 1: deltas .15 + .5 * .6 - .4 = .05, .25 - .6 = -.35; advantages -.35, .05 + .25 * -.35 = -.0375.
    """
    value = torch.tensor([[0.0, 0.1, 0.2, 0.3], [0.4, 0.6, 0.0, 0.0]])
    chosen = algorithm({"name": "gae", "gamma": 0.5, "lam": 0.5, "whiten": False})
    batch, _ = compute_advantages(scored_batch(value), chosen)
    rewards = torch.tensor([[0.0, 0.15, 0.05, 0.0], [0.15, 0.25, 0.0, 0.0]])
    torch.testing.assert_close(batch["token_reward"], rewards)
    expected = torch.tensor([[0.0, 0.13125, -0.075, -0.3], [-0.0375, -0.35, 0.0, 0.0]])
    torch.testing.assert_close(batch["advantage"], expected)


def test_grpo_compares_the_sums_of_per_token_rewards() -> None:
    """Rewards are -.1 + .3 = .2 and .2 + .2 = .4, their mean is .3."""
    chosen = algorithm({"name": "grpo", "std": "none"})
    batch, _ = compute_advantages(scored_batch(torch.zeros(2, 4)), chosen)
    torch.testing.assert_close(batch["reward"], torch.tensor([0.2, 0.4]))
    expected = torch.tensor([[0.0, -0.1, -0.1, -0.1], [0.1, 0.1, 0.0, 0.0]])
    torch.testing.assert_close(batch["advantage"], expected)


def test_reward_scaling_scales_per_token_rewards_too() -> None:
    """The standard deviation of .2 and .4 (n - 1) is .2 / sqrt 2."""
    chosen = algorithm({"name": "gae", "gamma": 0.5, "lam": 0.5, "whiten": False}, RewardScaling())
    batch, _ = compute_advantages(scored_batch(torch.zeros(2, 4)), chosen)
    rewards = torch.tensor([[0.0, 0.15, 0.05, 0.0], [0.15, 0.25, 0.0, 0.0]]) / (0.2 / 2**0.5)
    torch.testing.assert_close(batch["token_reward"], rewards)
