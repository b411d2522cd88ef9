"""Prompts of chats: all keys of messages, contents that a template drops, messages that are continued."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.data.chat_templates import (
    NO_SYSTEM,
    OPENS_THOUGHTS,
    PRINTS_CALLS,
    SPECIAL,
    TEMPLATES,
    USES_TOOLS,
)
from titanrl.data.tokenizer import ChatTokenizer
from titanrl.models import tiny
from titanrl.protocols import Prompt

every_template = pytest.mark.parametrize("family", TEMPLATES)
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "Add 2 and 3."}


@pytest.fixture(scope="module")
def tokenizer_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ChatTokenizer]:
    """Returns a function from a family, or a template, to a tokenizer with this template."""
    tokenizer = ChatTokenizer(tiny.create(tmp_path_factory.mktemp("model") / "tiny"))
    tokenizer.tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})

    def with_template(family: str) -> ChatTokenizer:
        tokenizer.tokenizer.chat_template = TEMPLATES.get(family, family)
        return tokenizer

    return with_template


@every_template
def test_tool_calls_reach_the_template_or_are_refused(
    family: str, tokenizer_of: Callable[[str], ChatTokenizer]
) -> None:
    tokenizer = tokenizer_of(family)
    turn = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    messages = [USER, turn, {"role": "tool", "content": "5", "name": "add"}]
    if family in PRINTS_CALLS:
        text = tokenizer.render_prompt(messages)
        assert all(part in text for part in ("add", '"a": 2', "5"))
    else:
        with pytest.raises(ValueError, match=r"tool_calls in message 1|no role tool"):
            tokenizer.render_prompt(messages)


@every_template
def test_a_role_that_the_template_does_not_know_is_refused(
    family: str, tokenizer_of: Callable[[str], ChatTokenizer]
) -> None:
    tokenizer = tokenizer_of(family)
    system, tool = {"role": "system", "content": "Be brief."}, {"role": "tool", "content": "Five."}
    turn = {"role": "assistant", "content": "Let me add."}
    if family in NO_SYSTEM:
        with pytest.raises(ValueError, match="no system role"):
            tokenizer.render_prompt([system, USER])
    else:
        assert "Be brief." in tokenizer.render_prompt([system, USER])
    if family in ("gemma", "phi"):
        with pytest.raises(ValueError, match=r"message 2, role 'tool'|no role tool"):
            tokenizer.render_prompt([USER, turn, tool])
    else:
        assert "Five." in tokenizer.render_prompt([USER, turn, tool])


@every_template
def test_the_assistants_last_message_is_continued(
    family: str, tokenizer_of: Callable[[str], ChatTokenizer]
) -> None:
    tokenizer = tokenizer_of(family)
    text = tokenizer.render_prompt([USER, {"role": "assistant", "content": "The sum is "}])
    assert text.endswith("The sum is ")
    assert "Add 2 and 3." in text
    if family not in (*OPENS_THOUGHTS, "mistral", "qwen3"):
        assert text == tokenizer.render([USER], add_generation_prompt=True) + "The sum is "


@every_template
def test_open_thoughts_are_continued_after_the_generation_prompt(
    family: str, tokenizer_of: Callable[[str], ChatTokenizer]
) -> None:
    tokenizer = tokenizer_of(family)
    text = tokenizer.render_prompt([USER, {"role": "assistant", "content": "<think>\n2 + 3"}])
    assert text.endswith("<think>\n2 + 3")
    assert text.count("<think>") == 1
    assert text.startswith(tokenizer.render([USER], add_generation_prompt=True))


def test_messages_that_cannot_be_continued_are_refused(tokenizer_of: Callable[[str], ChatTokenizer]) -> None:
    def refused(family: str, **turn: Any) -> str:
        with pytest.raises(ValueError, match="end the messages with a user's") as caught:
            tokenizer_of(family).render_prompt([USER, {"role": "assistant", **turn}])
        return str(caught.value)

    assert "ends with an empty message of the assistant" in refused("chatml", content="")
    assert "that calls tools" in refused("hermes tools", content="I add.", tool_calls=[CALL])
    assert "cannot continue" in refused("{{ messages[0].content }}", content="I add.")


@every_template
def test_tools_of_a_prompt_reach_the_template_or_are_refused(
    family: str, tokenizer_of: Callable[[str], ChatTokenizer]
) -> None:
    tokenizer = tokenizer_of(family)
    prompt = Prompt((USER,), tools=(TOOL,))
    if "tools" in TEMPLATES[family]:
        assert family in USES_TOOLS
        assert '"parameters"' in tokenizer.decode_prompt(tokenizer.encode(prompt))
    else:
        with pytest.raises(ValueError, match="has tools, which the chat template does not print"):
            tokenizer.encode(prompt)


def test_thoughts_in_a_key_of_their_own_need_a_template_that_prints_them(
    tokenizer_of: Callable[[str], ChatTokenizer],
) -> None:
    turn = {"role": "assistant", "content": "5", "reasoning_content": "2 + 3"}
    messages = [USER, turn, {"role": "tool", "content": "ok"}]
    assert "<think>\n2 + 3\n</think>" in tokenizer_of("qwen3").render_prompt(messages)
    with pytest.raises(ValueError, match="reasoning_content in message 1"):
        tokenizer_of("chatml").render_prompt(messages)


def test_a_prompt_that_ends_with_text_continues_its_tokens(tmp_path: Path) -> None:
    tokenizer = ChatTokenizer(tiny.create(tmp_path / "tiny"))
    turn = {"role": "assistant", "content": "2 + 3 = "}
    ids = tokenizer.encode(Prompt((USER, turn)))
    assert tokenizer.decode_prompt(ids) == "<bos>user: Add 2 and 3.\nassistant: 2 + 3 = "
