"""Prompts of requests: limits before tokenizing, refusals, the assistant's last turn continued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from titanrl.data.tokenizer import ChatTokenizer
from titanrl.models import tiny
from titanrl.serve.best_of_n import GenerationRequest
from titanrl.serve.prompts import PromptEncoder, longest_token

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return ChatTokenizer(tiny.create(tmp_path_factory.mktemp("model")), TEMPLATE)


def encoder(tokenizer: Any, **given: Any) -> PromptEncoder:
    settings = {"vocab_size": 96, "max_length": 40, "max_response_tokens": 4, "longest_token": 3, **given}
    return PromptEncoder(tokenizer, **settings)


def chat(*turns: tuple[str, str]) -> Any:
    return tuple({"role": role, "content": content} for role, content in turns)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            GenerationRequest("a " * 60),
            r"the prompt has \d+ tokens; with max_tokens = 4 that makes \d+, more than 40",
        ),
        (GenerationRequest("a", max_tokens=10**19), "with max_tokens = 10000000000000000000 that makes"),
        (GenerationRequest("x" * 121), "the prompt has 121 characters, more than 40 tokens can hold"),
        (GenerationRequest(tuple([5] * 37)), "the prompt has 37 tokens; with max_tokens = 4 that makes 41"),
        (GenerationRequest((5, 96)), "prompt must have token ids < 96, got 96"),
        (
            GenerationRequest(chat(("user", "a"), ("assistant", ""))),
            "ends with an empty message of the assistant",
        ),
    ],
)
def test_invalid_prompt_is_refused(tokenizer: ChatTokenizer, request_: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encoder(tokenizer)(request_)


def test_long_text_is_refused_before_it_is_tokenized() -> None:
    class Unused:
        """A tokenizer without methods."""

    for prompt in ("x" * 10**6, chat(("user", "x" * 10**6), ("user", "a"))):
        with pytest.raises(ValueError, match="more than 40 tokens can hold"):
            encoder(Unused())(GenerationRequest(prompt))


def test_longest_token_is_no_shorter_than_any(tokenizer: ChatTokenizer) -> None:
    longest = longest_token(tokenizer)
    assert all(len(tokenizer.decode_prompt([token])) <= longest for token in range(len(tokenizer.tokenizer)))


def test_responses_to_a_prompt_share_its_tokens(tokenizer: ChatTokenizer) -> None:
    request = GenerationRequest(chat(("system", "b"), ("user", "a")), "4", num_responses=2, seed=9)
    first, second = encoder(tokenizer)(request)
    assert first.prompt_ids is second.prompt_ids
    assert (first.prompt_index, first.sample_index, second.sample_index) == (9, 0, 1)
    assert (first.text, first.conversation, first.answer) == ("a", "[system]\nb\n\n[user]\na", "4")
    assert tokenizer.decode_prompt(first.prompt_ids).endswith("<system>b</><user>a</><assistant>")


def test_last_message_of_the_assistant_is_continued(tokenizer: ChatTokenizer) -> None:
    request = GenerationRequest(chat(("user", "a"), ("assistant", "The sum is")))
    (row,) = encoder(tokenizer)(request)
    assert tokenizer.decode_prompt(row.prompt_ids).endswith("<user>a</><assistant>The sum is")


def test_template_that_drops_the_last_message_is_refused(tmp_path: Path) -> None:
    tokenizer = ChatTokenizer(tiny.create(tmp_path / "model"), "{{ messages[0]['content'] }}")
    request = GenerationRequest(chat(("user", "a"), ("assistant", "The sum is")))
    with pytest.raises(ValueError, match="which the chat template cannot continue"):
        encoder(tokenizer)(request)


def test_message_with_tool_calls_needs_a_template_that_prints_them(tokenizer: ChatTokenizer) -> None:
    calls = [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]
    messages = (
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "5"},
    )
    with pytest.raises(ValueError, match="tool_calls in message 1, which the chat template does not print"):
        encoder(tokenizer)(GenerationRequest(messages))
