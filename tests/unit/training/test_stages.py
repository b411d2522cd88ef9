"""The stages that need a sampler, on a sampler that answers from a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict

from tests.unit.algorithm.test_compute_advantages import algorithm
from tests.unit.training.sessions import OneProcess, session_of
from titanrl import build
from titanrl.config.tables import Reward
from titanrl.protocols import Completion, RolloutRequest
from titanrl.rollout.sample_rows import sample_rows
from titanrl.training.stages import batch_metrics, sample, score


class CountedLetters:
    """Samples as many 'a' as the sample's number, and greedily as many as the prompt has tokens."""

    version = 3
    ranks_per_engine = 1

    def __init__(self) -> None:
        self.asked: list[tuple[int, bool]] = []

    def sample(
        self, rows: Sequence[RolloutRequest], *, step: int, seed: int, greedy: bool, **_: Any
    ) -> list[Completion]:
        self.asked.append((len(rows), greedy))
        lengths = [len(row.prompt_ids) if greedy else row.sample_index + 1 for row in rows]
        return [Completion([7] * length, [-0.5] * length, 0) for length in lengths]


def session(rewards: Sequence[Reward] = (), *, greedy: bool = False, old_logprob: str = "recompute") -> Any:
    chosen = algorithm(loss={"name": "sft"}, old_logprob=old_logprob)
    return session_of(
        OneProcess(),
        algorithm=chosen,
        rewards=tuple(rewards),
        sampler_table=build("sampler", {"name": "scripted", "max_response_tokens": 8}),
        live_sampler=CountedLetters(),
        scores_greedy=greedy,
    )


def letters(ids: Sequence[int]) -> list[str]:
    return ["a"] * len(ids)


def rows() -> list[RolloutRequest]:
    """Two groups of three, of prompts with two tokens and with four."""
    return [
        RolloutRequest(prompt_ids=[5] * (2 * group), prompt_index=group, sample_index=number)
        for group in (1, 2)
        for number in range(3)
    ]


def length_reward(weight: float, label: str) -> Reward:
    """weight times: 1 for four letters, 0 for others."""
    return Reward(
        component=build("reward", {"name": "format_regex", "pattern": "a{4}"}), weight=weight, label=label
    )


def test_greedy_baseline_is_the_weighted_reward_of_one_greedy_response_per_prompt() -> None:
    live = session([length_reward(2.0, "x"), length_reward(0.5, "y")], greedy=True)
    batch, failures, _ = sample(live, rows(), step=0)
    assert failures == ({"reward/greedy_failures": 0.0}, {})
    assert live.sampler.asked == [(6, False), (2, True)]
    assert batch["baseline_reward"].tolist() == [0, 0, 0, 2.5, 2.5, 2.5]
    assert batch_metrics(score(live, batch, on_policy=True)[0])["reward/greedy_mean"] == 1.25


def test_failures_on_greedy_responses_are_counted() -> None:
    def breaks(batch: TensorDict) -> torch.Tensor:
        raise RuntimeError("broken")

    term = length_reward(1.0, "x")
    object.__setattr__(term, "component", breaks)
    object.__setattr__(term, "failure_score", -1.0)
    batch, failures, _ = sample(session([term], greedy=True), rows(), step=0)
    assert failures == ({"reward/greedy_failures": 2.0}, {"x": "RuntimeError: broken"})
    assert batch["baseline_reward"].tolist() == [-1.0] * 6


def test_greedy_responses_are_sampled_only_if_a_component_reads_them() -> None:
    live = session([length_reward(1.0, "x")])
    batch, failures, _ = sample(live, rows(), step=0)
    assert "baseline_reward" not in batch
    assert failures == ({}, {})
    assert live.sampler.asked == [(6, False)]


def test_bypass_mode_uses_rollout_logprobs_as_old_logprobs() -> None:
    live = session(old_logprob="sampler")
    batch, _, _ = sample(live, rows(), step=0)
    batch["sampler_logprob"] = torch.where(batch["loss_mask"], batch["sampler_logprob"], torch.nan)
    scored, _ = score(live, batch, on_policy=True)
    assert torch.equal(scored["old_logprob"], torch.where(batch["loss_mask"], -0.5, 0.0))


def test_batch_without_rewards_has_no_reward_metrics() -> None:
    scored, failures = score(session(), sample(session(), rows(), step=0)[0], on_policy=True)
    assert failures == ({}, {})
    assert not {"reward", "rewards"} & set(scored.keys())
    assert not [name for name in batch_metrics(scored) if name.startswith("reward/")]
    (shown,) = sample_rows(scored, 1, letters)
    assert shown.keys() == {
        "prompt",
        "response",
        "answer",
        "finish_reason",
        "response_tokens",
        "group",
        "per_token",
    }


def test_sample_records_hold_rewards_and_mean_advantage() -> None:
    live = session([length_reward(2.0, "x")])
    request = RolloutRequest(prompt_ids=[5], prompt_index=0, sample_index=3)
    scored, _ = score(live, sample(live, [request], step=0)[0], on_policy=True)
    scored["advantage"] = torch.where(scored["loss_mask"], torch.tensor([1.0, 2.0, 3.0, 6.0]), 0.0)
    (shown,) = sample_rows(TensorDict(scored, batch_size=[1]), 5, letters)
    assert (shown["reward"], shown["rewards"], shown["advantage"]) == (2.0, {"x": 1.0}, 3.0)
    assert shown["per_token"] == {"text": ["a"] * 4, "logprob": [-0.5] * 4, "advantage": [1.0, 2.0, 3.0, 6.0]}


def test_sample_records_hold_the_values_of_each_response_token() -> None:
    scored, _ = score(session(), sample(session(), rows()[2:3] * 3, step=0)[0], on_policy=True)
    mask = scored["loss_mask"]
    scored["old_logprob"] = torch.where(mask, torch.tensor([0.0, -0.5, -0.4, -torch.inf]), 7.0)
    scored["ref_logprob"] = torch.where(mask, -1.0, 7.0)
    first, second, third = sample_rows(scored, 3, letters)
    assert first["per_token"]["log_ratio"] == [0.0, 0.1, None]
    assert first["per_token"]["ref_log_ratio"] == [0.5, 0.6, None]
    assert "per_token" in second
    assert "per_token" not in third


def test_normalized_values_enter_the_reward_and_raw_ones_are_reported() -> None:
    term = Reward(
        component=build("reward", {"name": "unfinished", "penalty": -4.0}), normalize="batch", weight=2.0
    )
    live = session([term])
    batch, _, _ = sample(live, rows(), 0)
    batch["finish_reason"] = torch.tensor([0, 1, 0, 1, 0, 1], dtype=torch.int8)
    scored, _ = score(live, batch, on_policy=True)
    assert scored["rewards", "unfinished"].tolist() == [0.0, -4.0] * 3
    # Mean -2, std over n - 1: sqrt(6 * 4 / 5).
    expected = torch.tensor([2.0, -2.0] * 3) / (24 / 5) ** 0.5 * 2.0
    assert torch.allclose(scored["reward"], expected, atol=1e-5)
