"""Chats over several turns: the row of a rollout holds the sampled ids whatever the template does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.data.chat_templates import ENDS, SPECIAL, TEMPLATES, USES_TOOLS
from titanrl.data.bridge import bridge
from titanrl.data.tokenizer import ChatTokenizer
from titanrl.models import tiny
from titanrl.protocols import Completion, FinishReason, Sampling
from titanrl.protocols.environment import POLICY
from titanrl.rollout.environments.chat import TemplateChat
from titanrl.rollout.environments.recorder import Recorder

every_template = pytest.mark.parametrize("family", TEMPLATES)
REWRITES = ("opens thoughts",)
"""Families whose next prompt never begins with the last one."""


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
    tools: list[dict[str, Any]] = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    chat = TemplateChat(tokenizer, "Add 2 and 3.", policy, tools=tools if role == "tool" else ())

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
    assert prompt + separator + "Fine." + tokenizer.decode_prompt(ids) == whole
    end = Policy(tokenizer, family, 0).end
    shorter = bridge(tokenizer, before, turn, end, after)
    has_end = any(text in TEMPLATES[family] for text in ENDS)
    assert shorter == (ids[1:] if has_end else ids)


def test_thoughts_that_the_template_removes_start_a_branch(
    tokenizer_of: Callable[[str], ChatTokenizer],
) -> None:
    before, after = [{"role": "user", "content": "Hello"}], [{"role": "user", "content": "And now?"}]
    thoughtful = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nFine."}
    for family, branches in (("qwen3", True), ("deepseek-r1", True), ("chatml", False), ("phi", False)):
        ids = bridge(tokenizer_of(family), before, thoughtful, None, after)
        assert (ids is None) is branches, family


def test_roles_that_a_template_rejects_are_named(tokenizer_of: Callable[[str], ChatTokenizer]) -> None:
    system = [{"role": "system", "content": "Be brief."}]
    with pytest.raises(ValueError, match="rejected by the chat template: no system role"):
        bridge(tokenizer_of("gemma"), system, {"role": "assistant", "content": "Yes."}, None, [])
