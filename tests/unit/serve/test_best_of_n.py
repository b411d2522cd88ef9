"""Ranking of responses: scored together, the best response first, errors per request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from titanrl import build
from titanrl.config.tables import Reward
from titanrl.errors import ConfigError, TrainingError
from titanrl.protocols import Completion, RolloutRequest
from titanrl.serve.best_of_n import (
    RankedResponse,
    Ranker,
    ScoringJob,
    ranking_rewards,
    reads_reference,
    without_reference,
)


@dataclass(frozen=True)
class Term:
    """A [[reward]] with a plain function."""

    component: Any
    label: str
    weight: float = 1.0
    failure_score: float = 0.0
    timeout_seconds: float = 5.0
    concurrency: int = 8
    on_failure: str = "score"
    after_thoughts: bool = False
    combine: str = "sum"
    gate_min: float = 0.5
    gate_reward: float = 0.0
    normalize: str = "none"

    def scored_text(self, response: str) -> str:
        return response


def near_c(batch: TensorDict) -> torch.Tensor:
    """Return 0 for the first letter c and less for others; raise for b."""
    letters = [text[:1] for text in batch["text", "response"]]
    if "b" in letters:
        raise RuntimeError("cannot score b")
    return torch.tensor([-float(abs(ord(letter) - ord("c"))) for letter in letters])


def is_reference(batch: TensorDict) -> torch.Tensor:
    pairs = zip(batch["text", "response"], batch["text", "answer"], strict=True)
    return torch.tensor([float(text == reference) for text, reference in pairs])


def jobs_of(*letters: str, answer: str | None = None) -> ScoringJob:
    """Return a job of the responses that begin with these letters."""
    rollouts = [RolloutRequest([5], 0, index, "say", answer or "") for index in range(len(letters))]
    texts = [letter * 4 for letter in letters]
    return ScoringJob(
        rollouts,
        [Completion([1, 2, 3, 4], [-0.5] * 4, 1) for _ in letters],
        [RankedResponse(text, 4, 1) for text in texts],
        texts,
        answer is not None,
    )


def test_best_response_comes_first_and_unscored_ones_last_with_the_reason() -> None:
    """The failure's 0 would beat every other score but the best."""
    (ranked,) = Ranker([Term(near_c, "near")], None)([jobs_of("a", "b", "c", "d")])
    assert not isinstance(ranked, Exception)
    assert [(each.text, each.score) for each in ranked] == [
        ("cccc", 0.0),
        ("dddd", -1.0),
        ("aaaa", -2.0),
        ("bbbb", None),
    ]
    assert ranked[0].rewards == {"near": 0.0}
    assert (ranked[3].rewards, ranked[3].failures) == ({}, {"near": "RuntimeError: cannot score b"})
    assert (ranked[0].num_tokens, ranked[0].finish_reason) == (4, 1)


def test_ties_stay_in_sampling_order() -> None:
    (ranked,) = Ranker([Term(is_reference, "right")], None)([jobs_of("a", "b", "c", answer="?")])
    assert [each.text[0] for each in ranked] == ["a", "b", "c"]  # type: ignore[union-attr]


def test_responses_are_ranked_by_the_named_reward_or_the_weighted_sum() -> None:
    rewards = [Term(near_c, "near", weight=0.1), Term(is_reference, "right", weight=2.0)]
    for label, score, raw in (
        (None, 1.8, {"near": -2.0, "right": 1.0}),
        ("near", -2.0, {"near": -2.0}),
        ("right", 1.0, {"right": 1.0}),
    ):
        (ranked,) = Ranker(rewards, label)([jobs_of("a", answer="aaaa")])
        assert ranked[0].score == pytest.approx(score)  # type: ignore[index]
        assert ranked[0].rewards == raw  # type: ignore[index]


def test_jobs_share_one_call_of_each_reward() -> None:
    calls: list[int] = []

    def counted(batch: TensorDict) -> torch.Tensor:
        calls.append(len(batch))
        return torch.arange(len(batch)).float()

    results = Ranker([Term(counted, "count")], None)([jobs_of("a", "b"), jobs_of("c", "d", "e")])
    assert calls == [5]
    assert [[each.score for each in ranked] for ranked in results] == [[1, 0], [4, 3, 2]]  # type: ignore[union-attr]


def test_error_of_the_rewards_is_that_of_the_job_at_fault() -> None:
    class Picky:
        def scores(self, batch: TensorDict) -> list[float]:
            if "xxxx" in batch["text", "response"]:
                raise ConfigError("heads must weigh those of the model")
            return [1.0] * len(batch)

    before, refused, after = Ranker([Term(Picky(), "picky")], None)(
        [jobs_of("a"), jobs_of("x"), jobs_of("b")]
    )
    assert before[0].score == after[0].score == 1.0  # type: ignore[index]
    assert isinstance(refused, TrainingError)
    assert str(refused) == "the rewards failed: ConfigError: heads must weigh those of the model"


def test_responses_without_a_reference_answer_are_ranked_by_the_rewards_that_need_none() -> None:
    right = Reward(component=build("reward", {"name": "exact_match"}), label="right")
    shape = {"name": "length_cosine", "max_length": 3, "correct": "right"}
    by_right = Reward(component=build("reward", shape), label="shape")
    varied = Reward(component=build("reward", {"name": "repetition", "n": 1}), label="varied", weight=0.5)
    shown = Reward(component=build("reward", {"name": "think_tags"}), label="shown", weight=0.0)
    rewards = [right, by_right, varied, shown]
    assert [reads_reference(each, rewards) for each in rewards] == [True, True, False, False]
    for label, labels in ((None, ["varied"]), ("right", []), ("shape", []), ("shown", ["shown"])):
        assert [each.label for each in without_reference(rewards, label)] == labels
    assert without_reference([right, shown], None) == []
    with_answer, without = Ranker(rewards, None)([jobs_of("a", answer="aaaa"), jobs_of("b")])
    assert set(with_answer[0].rewards) == {"right", "shape", "varied"}  # type: ignore[index]
    assert set(without[0].rewards) == {"varied"}  # type: ignore[index]


def test_ranking_rewards_are_weighted_rewards_and_their_inputs() -> None:
    cosine = build("reward", {"name": "length_cosine", "max_length": 3, "correct": "box"})
    rewards = [
        Reward(component=cosine, label="shape"),
        Reward(component=build("reward", {"name": "exact_match"}), label="box", weight=0.0),
        Reward(component=build("reward", {"name": "repetition"}), label="shown", weight=0.0),
    ]
    for label, needed in ((None, ["shape", "box"]), ("shape", ["shape", "box"]), ("shown", ["shown"])):
        assert [each.label for each in ranking_rewards(rewards, label)] == needed
    with pytest.raises(
        ConfigError, match=r"--reward must be .*'boks'; did you mean 'box'\? labels: shape, box"
    ):
        ranking_rewards(rewards, "boks")
