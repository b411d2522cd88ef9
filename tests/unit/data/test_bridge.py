"""Chats over several turns: the row of a rollout holds the sampled ids whatever the template does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.data.chat_templates import (
    ENDS,
    NO_SYSTEM,
    OPENS_THOUGHTS,
    SPECIAL,
    STRIPS_THOUGHTS,
    TEMPLATES,
    USES_TOOLS,
)
from titanrl.data.bridge import bridge
from titanrl.data.tokenizer import ChatTokenizer
from titanrl.models import tiny
from titanrl.protocols import Completion, FinishReason, Sampling
from titanrl.protocols.environment import POLICY
from titanrl.rollout.environments.chat import TemplateChat
from titanrl.rollout.environments.recorder import Recorder

every_template = pytest.mark.parametrize("family", TEMPLATES)
REWRITES = ("qwen3 thinking",)
"""Families whose next prompt never begins with the last one, because it drops its opening of thoughts."""


@pytest.fixture(scope="module")
def tokenizer_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ChatTokenizer]:
    folder: Path = tmp_path_factory.mktemp("tokenizer") / "tiny"
    tiny.create(folder)
    tokenizer = ChatTokenizer(folder)
    tokenizer.tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    ends = tokenizer.tokenizer.convert_tokens_to_ids(list(ENDS))
    tokenizer.eos_ids = tuple(sorted({*tokenizer.eos_ids, *ends}))

    def with_template(family: str) -> ChatTokenizer:
        tokenizer.tokenizer.chat_template = TEMPLATES[family]
        return tokenizer

    return with_template


class Policy:
    """Answers with random ids, which may be any part of a character, and ends by an end token or not."""

    def __init__(self, tokenizer: ChatTokenizer, family: str, seed: int) -> None:
        self.random, self.recorder = random.Random(seed), Recorder()
        vocabulary = tokenizer.tokenizer.get_vocab()
        special = {vocabulary[text] for text in SPECIAL} | set(tokenizer.tokenizer.all_special_ids)
        self.ids = sorted(set(vocabulary.values()) - special - set(tokenizer.eos_ids))
        ends = [text for text in ENDS if text in TEMPLATES[family]]
        self.end = vocabulary[ends[0]] if ends else tokenizer.eos_ids[0]
        self.prompts: list[list[int]] = []
        self.sampled: list[list[int]] = []

    async def __call__(self, ids: Sequence[int], sampling: Sampling = POLICY) -> Completion:
        sampled = self.random.choices(self.ids, k=self.random.randint(1, 12))
        reason = self.random.choice((FinishReason.STOP, FinishReason.LENGTH))
        sampled += [self.end] if reason == FinishReason.STOP else []
        completion = Completion(sampled, [-1.0] * len(sampled), reason)
        self.recorder.record(ids, completion, sampling, turn=len(self.sampled), version=0)
        self.prompts.append(list(ids))
        self.sampled.append(sampled)
        return completion

    def room(self, ids: Sequence[int]) -> int:
        return 12


def play(tokenizer: ChatTokenizer, policy: Policy, turns: int, *, role: str) -> TemplateChat:
    prints_tools = role == "tool" and "tools" in tokenizer.tokenizer.chat_template
    tools: list[dict[str, Any]] = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    chat = TemplateChat(tokenizer, "Add 2 and 3.", policy, tools=tools if prints_tools else ())

    async def rounds() -> None:
        for _ in range(turns):
            await chat.ask()
            chat.add({"role": role, "content": policy.random.choice(("5", " no ", "é\n\n7", "<b>"))})

    asyncio.run(rounds())
    return chat


@every_template
@pytest.mark.parametrize("role", ["user", "tool"])
def test_rows_hold_the_sampled_ids_in_every_template(
    family: str, role: str, tokenizer_of: Callable[[str], ChatTokenizer]
) -> None:
    if role == "tool" and family not in USES_TOOLS:
        pytest.skip("its template has no tools")
    tokenizer = tokenizer_of(family)
    for seed in range(20):
        policy = Policy(tokenizer, family, seed)
        play(tokenizer, policy, 4, role=role)
        rows = [each.row for each in policy.recorder.rows()]
        assert len(rows) == (4 if family in REWRITES else 1)
        trained: list[int] = []
        for row in rows:
            mask = row.completion.mask or ()
            ids = [token for token, sampled in zip(row.completion.ids, mask, strict=True) if sampled]
            trained += ids
        assert trained == [token for sampled in policy.sampled for token in sampled]
        # The last row is the last prompt and the last response, token by token.
        last = [*rows[-1].prompt_ids, *rows[-1].completion.ids]
        assert last == [*policy.prompts[-1], *policy.sampled[-1]]


@every_template
def test_text_between_turns_is_the_templates(
    family: str, tokenizer_of: Callable[[str], ChatTokenizer]
) -> None:
    tokenizer = tokenizer_of(family)
    before, after = [{"role": "user", "content": "Hello"}], [{"role": "user", "content": "And now?"}]
    turn = {"role": "assistant", "content": "Fine."}
    prompt = tokenizer.render(before, add_generation_prompt=True)
    whole = tokenizer.render([*before, turn, *after], add_generation_prompt=True)
    ids = bridge(tokenizer, before, turn, None, after)
    if family in REWRITES:
        assert ids is None
        return
    assert ids is not None
    separator = " " if family == "mistral" else ""
    # In history, the template does not print the opening of thoughts, which the sampled ids follow.
    opening = "<think>\n" if family in OPENS_THOUGHTS and family != "keeps thoughts" else ""
    assert prompt.removesuffix(opening) + separator + "Fine." + tokenizer.decode_prompt(ids) == whole
    end = Policy(tokenizer, family, 0).end
    shorter = bridge(tokenizer, before, turn, end, after)
    has_end = any(text in TEMPLATES[family] for text in ENDS)
    assert shorter == (ids[1:] if has_end else ids)


@every_template
def test_rerendered_turns_equal_the_row_if_their_text_encodes_to_the_sampled_ids(
    family: str, tokenizer_of: Callable[[str], ChatTokenizer]
) -> None:
    tokenizer = tokenizer_of(family)
    if family in REWRITES or family in ("deepseek-r1", "opens thoughts", "mistral"):
        pytest.skip("its history differs from its prompts in white space or in the opening of thoughts")
    before = [{"role": "user", "content": "Hello"}]
    for seed in range(5):
        policy = Policy(tokenizer, family, seed)
        sampled = policy.random.choices(policy.ids, k=8)
        text = tokenizer.decode_response(sampled).strip()
        sampled = tokenizer.encode_text(text)
        turn, after = {"role": "assistant", "content": text}, [{"role": "user", "content": "Go on."}]
        between = bridge(tokenizer, before, turn, None, after)
        assert between is not None
        start = tokenizer.encode_text(tokenizer.render(before, add_generation_prompt=True))
        whole = tokenizer.render([*before, turn, *after], add_generation_prompt=True)
        assert tokenizer.decode_prompt([*start, *sampled, *between]) == whole


def test_thoughts_that_the_template_removes_start_a_branch(
    tokenizer_of: Callable[[str], ChatTokenizer],
) -> None:
    before, after = [{"role": "user", "content": "Hello"}], [{"role": "user", "content": "And now?"}]
    thoughtful = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nFine."}
    for family in TEMPLATES:
        if family in REWRITES or family in NO_SYSTEM:
            continue
        ids = bridge(tokenizer_of(family), before, thoughtful, None, after)
        assert (ids is None) is (family in STRIPS_THOUGHTS), family


def test_thoughts_of_a_turn_with_tool_calls_stay_in_its_row(
    tokenizer_of: Callable[[str], ChatTokenizer],
) -> None:
    before, after = [{"role": "user", "content": "Hello"}], [{"role": "tool", "content": "5"}]
    turn = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nadd(2, 3)"}
    assert bridge(tokenizer_of("qwen3"), before, turn, None, after) is not None
    turn["content"] = "hm\n</think>\n\nadd(2, 3)"
    assert bridge(tokenizer_of("qwen3 thinking"), before, turn, None, after) is not None


def test_text_that_begins_as_an_inserted_text_does_not_match_it(
    tokenizer_of: Callable[[str], ChatTokenizer],
) -> None:
    tokenizer = tokenizer_of("qwen3")
    tokenizer.tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}:{{ '<t></t>' if m.role == 'assistant' }}{{ m.content }}\n"
        "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    before, after = [{"role": "user", "content": "Hello"}], [{"role": "user", "content": "5"}]
    for text in ("<", "<t>", "", "<t></t>x"):
        assert bridge(tokenizer, before, {"role": "assistant", "content": text}, None, after) is None, text


def test_calls_that_were_parsed_from_the_text_are_not_printed_again(
    tokenizer_of: Callable[[str], ChatTokenizer],
) -> None:
    tokenizer = tokenizer_of("hermes tools")
    before, after = [{"role": "user", "content": "Hello"}], [{"role": "tool", "content": "5"}]
    turn: dict[str, Any] = {"role": "assistant", "content": "<tool_call>add</tool_call>"}
    plain = bridge(tokenizer, before, turn, None, after)
    turn["tool_calls"] = [{"type": "function", "function": {"name": "add", "arguments": {}}}]
    assert plain is not None
    assert bridge(tokenizer, before, turn, None, after) == plain


def test_end_token_that_opens_the_next_message_is_kept_unless_it_was_sampled(
    tokenizer_of: Callable[[str], ChatTokenizer],
) -> None:
    tokenizer = tokenizer_of("glm")
    user, observation = tokenizer.tokenizer.convert_tokens_to_ids(["<|user|>", "<|observation|>"])
    usual = tokenizer.eos_ids
    tokenizer.eos_ids = (user, observation)
    try:
        before, after = [{"role": "user", "content": "Hello"}], [{"role": "tool", "content": "5"}]
        turn = {"role": "assistant", "content": "add(2, 3)"}
        whole = bridge(tokenizer, before, turn, None, after)
        assert whole is not None
        assert whole[0] == observation
        assert bridge(tokenizer, before, turn, observation, after) == whole[1:]
        assert bridge(tokenizer, before, turn, user, after) == whole
    finally:
        tokenizer.eos_ids = usual


def test_variables_of_the_template_reach_the_bridge(tokenizer_of: Callable[[str], ChatTokenizer]) -> None:
    tokenizer = tokenizer_of("qwen3")
    before, after = [{"role": "user", "content": "Hello"}], [{"role": "user", "content": "And now?"}]
    turn, off = {"role": "assistant", "content": "Fine."}, {"enable_thinking": False}
    assert tokenizer.render(before, add_generation_prompt=True, template_kwargs=off).endswith("</think>\n\n")
    # The next prompt drops the empty thoughts of this one, so it starts a branch.
    assert bridge(tokenizer, before, turn, None, after, template_kwargs=off) is None


def test_messages_that_a_template_rejects_or_ignores_are_named(
    tokenizer_of: Callable[[str], ChatTokenizer],
) -> None:
    user, turn = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes."}
    system, tool = {"role": "system", "content": "Be brief."}, {"role": "tool", "content": "5"}
    with pytest.raises(ValueError, match="rejected by the chat template: no system role"):
        bridge(tokenizer_of("gemma"), [system, user], turn, None, [])
    with pytest.raises(ValueError, match="rejected by the chat template: no role tool"):
        bridge(tokenizer_of("gemma"), [user], turn, None, [tool])
    with pytest.raises(ValueError, match="without the content of message 2, role 'tool'"):
        bridge(tokenizer_of("phi"), [user], turn, None, [tool])


def test_a_chat_continues_the_last_message_of_its_prompt(
    tokenizer_of: Callable[[str], ChatTokenizer],
) -> None:
    tokenizer = tokenizer_of("chatml")
    policy = Policy(tokenizer, "chatml", 0)
    prefill = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Well, "}]
    chat = TemplateChat(tokenizer, prefill, policy)

    async def rounds() -> None:
        said = await chat.ask()
        assert said["content"].startswith("Well, ")
        chat.add({"role": "user", "content": "And?"})
        await chat.ask()

    asyncio.run(rounds())
    assert tokenizer.decode_prompt(policy.prompts[0]).endswith("<|im_start|>assistant\nWell, ")
    assert policy.prompts[1][: len(policy.prompts[0])] == policy.prompts[0]
    assert len(list(policy.recorder.rows())) == 1
