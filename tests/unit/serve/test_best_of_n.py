"""Questions from outside: sampled and judged together, the best first, faults told to who asked."""

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
    """Sample i of a prompt is the letters from number i on, as many as may be."""

    version = 0

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def sample(self, rows: Sequence[RolloutRequest], **given: Any) -> list[Completion]:
        self.asked.append({"rows": list(rows), **given})
        if given["temperature"] == 0.001:
            raise ValueError("temperature must be in [0.01, 2], got 0.001")
        length = given["max_tokens"] or 4
        return [
            Completion([97 + row.sample_index + i for i in range(length)], [-0.5] * length, 1) for row in rows
        ]


class Letters:
    """Tokens are code points."""

    def encode(self, prompt: Any) -> list[int]:
        if not isinstance(prompt.messages, str):
            raise ValueError("is refused by the chat template: no.")
        return [ord(letter) for letter in prompt.messages]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    decode_prompt = decode


@dataclass(frozen=True)
class Term:
    """A [[reward]] of a plain function."""

    component: Any
    label: str
    weight: float = 1.0
    failure_score: float = 0.0
    timeout_seconds: float = 5.0


def near_c(batch: TensorDict) -> torch.Tensor:
    """Below 0 but for a first letter c; it cannot judge b."""
    letters = [text[:1] for text in batch["text", "response"]]
    if "b" in letters:
        raise RuntimeError("I know no b")
    return torch.tensor([-float(abs(ord(letter) - ord("c"))) for letter in letters])


def is_answer(batch: TensorDict) -> torch.Tensor:
    pairs = zip(batch["text", "response"], batch["text", "answer"], strict=True)
    return torch.tensor([float(text == answer) for text, answer in pairs])


def host(*rewards: Any) -> Generator:
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
    (found,) = BestOf(host(Term(near_c, "near")))([GenerationRequest("say", num=4, is_judged=True)])
    assert isinstance(found, GenerationResult)
    assert [(each.text, each.score) for each in found.ranked] == [
        ("cdef", 0.0), ("defg", -1.0), ("abcd", -2.0), ("bcde", None),
    ]  # fmt: skip
    assert found.ranked[0].rewards == {"near": 0.0}
    assert (found.ranked[3].rewards, found.ranked[3].failures) == ({}, {"near": "RuntimeError: I know no b"})
    assert (found.prompt_tokens, found.ranked[0].tokens, found.ranked[0].finish_reason) == (3, 4, 1)


def test_ties_stay_in_sampling_order() -> None:
    (found,) = BestOf(host(Term(is_answer, "right")))([GenerationRequest("say", "?", num=3, is_judged=True)])
    assert [each.text for each in found.ranked] == ["abcd", "bcde", "cdef"]  # type: ignore[union-attr]


def test_responses_are_ranked_by_the_named_reward_or_the_weighted_sum() -> None:
    rewards = Term(near_c, "near", weight=0.1), Term(is_answer, "right", weight=2.0)
    question = GenerationRequest("say", "abcd", num=1, is_judged=True)
    for label, score, raw in (
        (None, 1.8, {"near": -2.0, "right": 1.0}),
        ("near", -2.0, {"near": -2.0}),
        ("right", 1.0, {"right": 1.0}),
    ):
        (found,) = BestOf(host(*rewards), label)([question])
        assert found.ranked[0].score == pytest.approx(score)  # type: ignore[union-attr]
        assert found.ranked[0].rewards == raw  # type: ignore[union-attr]


def test_compatible_requests_share_one_sampler_and_reward_call() -> None:
    calls: list[int] = []

    def counted(batch: TensorDict) -> torch.Tensor:
        calls.append(len(batch))
        return torch.arange(len(batch)).float()

    live = host(Term(counted, "count"))
    questions = [
        GenerationRequest("say", "x", num=2, is_judged=True, seed=5),
        GenerationRequest("ask", num=1, seed=6),
        GenerationRequest("say", num=1, temperature=0.0),
        GenerationRequest("say", num=3, is_judged=True, max_tokens=2),
    ]
    found = BestOf(live)(questions)
    asked = live.sampler.asked
    keys = ("temperature", "greedy", "max_tokens")
    assert [(len(each["rows"]), *(each[key] for key in keys)) for each in asked] == [
        (3, None, False, None), (1, None, True, None), (3, None, False, 2),
    ]  # fmt: skip
    assert {(each["step"], each["seed"]) for each in asked} == {(0, 7)}
    rows = [(row.prompt_index, row.sample_index, row.text, row.answer) for row in asked[0]["rows"]]
    assert rows == [(5, 0, "say", "x"), (5, 1, "say", "x"), (6, 0, "ask", "")]
    assert calls == [5]
    scores = [[each.score for each in answers.ranked] for answers in found]  # type: ignore[union-attr]
    assert scores == [[1.0, 0.0], [None], [None], [4.0, 3.0, 2.0]]
    assert found[1] == GenerationResult(3, [RankedResponse("abcd", 4, 1)])


def test_response_ends_before_the_first_stop_text() -> None:
    def length(batch: TensorDict) -> torch.Tensor:
        return torch.tensor([float(len(text)) for text in batch["text", "response"]])

    asked = [
        GenerationRequest("say", stop=("d", "cd"), is_judged=True),
        GenerationRequest("say", stop=("bc",), is_judged=True),
        GenerationRequest("say", stop=("x",), is_judged=True),
    ]
    found = BestOf(host(Term(length, "length")))(asked)
    best = [answers.ranked[0] for answers in found]  # type: ignore[union-attr]
    assert [(each.text, each.tokens, each.finish_reason, each.score) for each in best] == [
        ("ab", 4, 0, 2.0), ("a", 3, 0, 1.0), ("abcd", 4, 1, 4.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("question", "message"),
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
def test_invalid_request_is_refused_alone(question: GenerationRequest, message: str) -> None:
    before, refused, after = BestOf(host())([GenerationRequest("say"), question, GenerationRequest((97, 98))])
    assert isinstance(before, GenerationResult)
    assert isinstance(after, GenerationResult)
    with pytest.raises(ValueError, match=message):
        raise refused  # type: ignore[misc]


def test_reward_error_is_reported_to_requests_for_scores() -> None:
    class Gone:
        def scores(self, batch: TensorDict) -> list[float]:
            raise ConfigError("heads must weigh those of the model")

    judged, plain = BestOf(host(Term(Gone(), "gone")))(
        [GenerationRequest("say", is_judged=True), GenerationRequest("say")]
    )
    assert isinstance(plain, GenerationResult)
    assert isinstance(judged, TrainingError)
    assert str(judged) == "the rewards failed: ConfigError: heads must weigh those of the model"


def test_ranking_rewards_are_weighted_rewards_and_their_inputs() -> None:
    cosine = build("reward", {"name": "length_cosine", "max_length": 3, "correct": "box"})
    rewards = [
        Reward(component=cosine, label="shape"),
        Reward(component=build("reward", {"name": "exact_match"}), label="box", weight=0.0),
        Reward(component=build("reward", {"name": "repetition"}), label="shown", weight=0.0),
    ]
    for label, wanted in ((None, ["shape", "box"]), ("shape", ["shape", "box"]), ("shown", ["shown"])):
        assert [each.label for each in ranking_rewards(rewards, label)] == wanted
    with pytest.raises(
        ConfigError, match=r"--reward must be .*'boks'; did you mean 'box'\? labels: shape, box"
    ):
        ranking_rewards(rewards, "boks")
