"""Requests from outside: generated and scored together, the best response first, errors per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tensordict import TensorDict

from titanrl import build
from titanrl.config.tables import Reward
from titanrl.errors import ConfigError, TrainingError
from titanrl.protocols import Completion, RolloutRequest
from titanrl.rollout.generator import Generator
from titanrl.serve import best_of_n
from titanrl.serve.best_of_n import (
    BestOf,
    GenerationRequest,
    GenerationResult,
    RankedResponse,
    ranking_rewards,
)


class Alphabet:
    """A sampler whose response i is the alphabet from letter i on, as long as allowed."""

    version = 0

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def sample(self, rows: Sequence[RolloutRequest], **given: Any) -> list[Completion]:
        self.calls.append({"rows": list(rows), **given})
        if given["temperature"] == 0.001:
            raise ValueError("temperature must be in [0.01, 2], got 0.001")
        length = given["max_tokens"] or 4
        return [
            Completion([97 + row.sample_index + i for i in range(length)], [-0.5] * length, 1) for row in rows
        ]


class Letters:
    """A tokenizer whose ids are code points."""

    def encode(self, prompt: Any) -> list[int]:
        if not isinstance(prompt.messages, str):
            raise ValueError("is refused by the chat template: no.")
        return [ord(letter) for letter in prompt.messages]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    decode_prompt = decode


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


def generator(*rewards: Any) -> Generator:
    return Generator(
        engine=cast(Any, None),
        tokenizer=cast(Any, Letters()),
        sampler=cast(Any, Alphabet()),
        sampler_settings=build("sampler", {"name": "scripted", "max_response_tokens": 4}),
        rewards=rewards,
        model_path="m",
        max_length=12,
        seed=7,
    )


@pytest.fixture(autouse=True)
def vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_of_n, "inspect", lambda path: SimpleNamespace(vocab_size=128))


def test_best_response_comes_first_and_unscored_ones_last_with_the_reason() -> None:
    """The failure's 0 would beat every other score but the best."""
    (result,) = BestOf(generator(Term(near_c, "near")))(
        [GenerationRequest("say", num_responses=4, is_ranked=True)]
    )
    assert isinstance(result, GenerationResult)
    assert [(each.text, each.score) for each in result.ranked] == [
        ("cdef", 0.0),
        ("defg", -1.0),
        ("abcd", -2.0),
        ("bcde", None),
    ]
    assert result.ranked[0].rewards == {"near": 0.0}
    assert (result.ranked[3].rewards, result.ranked[3].failures) == (
        {},
        {"near": "RuntimeError: cannot score b"},
    )
    assert (result.num_prompt_tokens, result.ranked[0].num_tokens, result.ranked[0].finish_reason) == (
        3,
        4,
        1,
    )


def test_ties_stay_in_sampling_order() -> None:
    (result,) = BestOf(generator(Term(is_reference, "right")))(
        [GenerationRequest("say", "?", num_responses=3, is_ranked=True)]
    )
    assert [each.text for each in result.ranked] == ["abcd", "bcde", "cdef"]  # type: ignore[union-attr]


def test_responses_are_ranked_by_the_named_reward_or_the_weighted_sum() -> None:
    rewards = Term(near_c, "near", weight=0.1), Term(is_reference, "right", weight=2.0)
    request = GenerationRequest("say", "abcd", num_responses=1, is_ranked=True)
    for label, score, raw in (
        (None, 1.8, {"near": -2.0, "right": 1.0}),
        ("near", -2.0, {"near": -2.0}),
        ("right", 1.0, {"right": 1.0}),
    ):
        (result,) = BestOf(generator(*rewards), label)([request])
        assert result.ranked[0].score == pytest.approx(score)  # type: ignore[union-attr]
        assert result.ranked[0].rewards == raw  # type: ignore[union-attr]


def test_compatible_requests_share_one_sampler_and_reward_call() -> None:
    calls: list[int] = []

    def counted(batch: TensorDict) -> torch.Tensor:
        calls.append(len(batch))
        return torch.arange(len(batch)).float()

    live = generator(Term(counted, "count"))
    requests = [
        GenerationRequest("say", "x", num_responses=2, is_ranked=True, seed=5),
        GenerationRequest("ask", num_responses=1, seed=6),
        GenerationRequest("say", num_responses=1, temperature=0.0),
        GenerationRequest("say", num_responses=3, is_ranked=True, max_tokens=2),
    ]
    results = BestOf(live)(requests)
    sampled = live.sampler.calls
    keys = ("temperature", "greedy", "max_tokens")
    assert [(len(each["rows"]), *(each[key] for key in keys)) for each in sampled] == [
        (3, None, False, None),
        (1, None, True, None),
        (3, None, False, 2),
    ]
    assert {(each["step"], each["seed"]) for each in sampled} == {(0, 7)}
    rows = [(row.prompt_index, row.sample_index, row.text, row.answer) for row in sampled[0]["rows"]]
    assert rows == [(5, 0, "say", "x"), (5, 1, "say", "x"), (6, 0, "ask", "")]
    assert calls == [5]
    scores = [[each.score for each in result.ranked] for result in results]  # type: ignore[union-attr]
    assert scores == [[1.0, 0.0], [None], [None], [4.0, 3.0, 2.0]]
    assert results[1] == GenerationResult(3, [RankedResponse("abcd", 4, 1)])


def test_response_ends_before_the_first_stop_text() -> None:
    def length(batch: TensorDict) -> torch.Tensor:
        return torch.tensor([float(len(text)) for text in batch["text", "response"]])

    requests = [
        GenerationRequest("say", stop=("d", "cd"), is_ranked=True),
        GenerationRequest("say", stop=("bc",), is_ranked=True),
        GenerationRequest("say", stop=("x",), is_ranked=True),
    ]
    results = BestOf(generator(Term(length, "length")))(requests)
    best = [result.ranked[0] for result in results]  # type: ignore[union-attr]
    assert [(each.text, each.num_tokens, each.finish_reason, each.score) for each in best] == [
        ("ab", 4, 0, 2.0),
        ("a", 3, 0, 1.0),
        ("abcd", 4, 1, 4.0),
    ]


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        (
            GenerationRequest("long enough"),
            "the prompt has 11 tokens; with max_tokens = 4 that makes 15, more than 12",
        ),
        (GenerationRequest("say", max_tokens=10), "with max_tokens = 10 that makes 13, more than 12"),
        (GenerationRequest(""), "prompt has no tokens"),
        (GenerationRequest((5, 128)), "prompt must have token ids < 128, got 128"),
        (GenerationRequest(({"role": "user", "content": "a"},)), "messages is refused by the chat template"),
        (GenerationRequest("say", temperature=0.001), r"temperature must be in \[0.01, 2\]"),
    ],
)
def test_invalid_invalidis_refused_alone(invalid: GenerationRequest, message: str) -> None:
    before, refused, after = BestOf(generator())(
        [GenerationRequest("say"), invalid, GenerationRequest((97, 98))]
    )
    assert isinstance(before, GenerationResult)
    assert isinstance(after, GenerationResult)
    with pytest.raises(ValueError, match=message):
        raise refused  # type: ignore[misc]


def test_reward_error_is_reported_to_requests_for_scores() -> None:
    class Gone:
        def scores(self, batch: TensorDict) -> list[float]:
            raise ConfigError("heads must weigh those of the model")

    ranked, plain = BestOf(generator(Term(Gone(), "gone")))(
        [GenerationRequest("say", is_ranked=True), GenerationRequest("say")]
    )
    assert isinstance(plain, GenerationResult)
    assert isinstance(ranked, TrainingError)
    assert str(ranked) == "the rewards failed: ConfigError: heads must weigh those of the model"


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
