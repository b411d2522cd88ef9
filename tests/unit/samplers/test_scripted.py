"""Scripted answers, and what samplers refuse alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import titanrl
from titanrl.components.samplers.scripted import Scripted
from titanrl.errors import ConfigError
from titanrl.models import tiny
from titanrl.protocols import RolloutRequest, SamplerContext


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny.create(tmp_path_factory.mktemp("model")))


def start(tokenizer: Any, **settings: Any) -> Any:
    context = SamplerContext(model_path="", eos_ids=(2, 3), max_length=32, seed=0, tokenizer=tokenizer)
    return Scripted(**{"max_response_tokens": 8, **settings}).start(context)


def test_scripted_responses_come_from_the_table_with_eos(tokenizer: Any) -> None:
    sampler = start(tokenizer, answers=("{answer}", "no"), by_prompt={"why?": "ask {prompt}"})
    rows = [RolloutRequest([1, 5], 0, sample, text="1+1", answer="2") for sample in range(3)]
    rows.append(RolloutRequest([1], 1, 0, text="why?", answer="?"))
    answers = sampler.sample(rows, step=0, seed=0)
    assert [tokenizer.decode(answer.ids[:-1]) for answer in answers[:3]] == ["2", "no", "2"]
    assert all(answer.ids[-1] == 2 for answer in answers[:3])
    assert [answer.finish_reason for answer in answers] == [0, 0, 0, 1]
    # "ask why?" has 8 characters, so there is no room for the end token.
    assert tokenizer.decode(answers[3].ids) == "ask why?"


def test_every_token_has_the_logprob(tokenizer: Any) -> None:
    (answer,) = start(tokenizer, answers=("abc",), logprob=-1.5).sample(
        [RolloutRequest([1], 0, 0)], step=0, seed=0
    )
    assert answer.logprobs == [-1.5] * 4


def test_versions_count_without_asking_for_weights(tokenizer: Any) -> None:
    def refuse() -> Iterator[Any]:
        raise AssertionError("asked for weights")
        yield

    sampler = start(tokenizer)
    sampler.load(refuse(), version=3)
    assert sampler.version == 3


def test_prompts_without_space_for_a_response_are_refused(tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="makes 33, more than the 32"):
        start(tokenizer).sample([RolloutRequest([1] * 25, 0, 0)], step=0, seed=0)


def test_scripted_sampler_without_responses_or_tokenizer_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one response"):
        Scripted(answers=())
    with pytest.raises(ValueError, match=r"logprob must be in \[-inf, 0\]"):
        Scripted(logprob=0.5)
    with pytest.raises(ValueError, match="needs the model's tokenizer"):
        start(None)


@pytest.mark.parametrize("name", ["torch", "vllm", "scripted"])
def test_tables_become_samplers(name: str) -> None:
    sampler = titanrl.build("sampler", {"name": name, "temperature": 0.7, "max_response_tokens": 5})
    assert (sampler.temperature, sampler.max_response_tokens) == (0.7, 5)
    with pytest.raises(ConfigError, match="did you mean 'max_response_tokens'"):
        titanrl.build("sampler", {"name": name, "max_respons_tokens": 5})
    with pytest.raises(ConfigError, match="temperature must be in"):
        titanrl.build("sampler", {"name": name, "temperature": 0.0})


def test_max_tokens_of_a_call_truncates_its_responses(tokenizer: Any) -> None:
    sampler, rows = start(tokenizer, answers=("abc",), max_response_tokens=2), [RolloutRequest([1], 0, 0)]
    for max_tokens, text, reason in ((None, "ab", 1), (1, "a", 1), (3, "abc", 1), (4, "abc<eos>", 0)):
        (answer,) = sampler.sample(rows, step=0, seed=0, max_tokens=max_tokens)
        assert (tokenizer.decode(answer.ids), answer.finish_reason) == (text, reason)
    with pytest.raises(ValueError, match="makes 33, more than the 32"):
        sampler.sample(rows, step=0, seed=0, max_tokens=32)
