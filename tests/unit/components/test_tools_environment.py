"""Rollouts that call tools: rounds of asking and calling, limits, and messages of tools."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit.data.chat_templates import SPECIAL, TEMPLATES
from titanrl.data.tokenizer import ChatTokenizer
from titanrl.errors import ConfigError
from titanrl.models import tiny
from titanrl.protocols import (
    Completion,
    EnvironmentContext,
    FinishReason,
    RolloutLimit,
    RolloutRequest,
    Trajectory,
)
from titanrl.protocols.environment import POLICY, Sampling
from titanrl.registry.decode import build
from titanrl.rollout.environments.chat import TemplateChat

CALCULATOR = {"name": "tools", "tool": [{"name": "calculator"}]}
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6*7"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer") / "tiny"
    tiny.create(folder)
    tokenizer = ChatTokenizer(folder)
    tokenizer.tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    tokenizer.eos_ids = (tokenizer.tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    return tokenizer


class Policy:
    """Says given texts."""

    def __init__(self, tokenizer: ChatTokenizer, texts: Sequence[str]) -> None:
        self.tokenizer, self.texts = tokenizer, list(texts)
        self.prompts: list[list[int]] = []
        self.sampled: list[list[int]] = []

    async def __call__(self, ids: Sequence[int], sampling: Sampling = POLICY) -> Completion:
        if len(self.prompts) == len(self.texts):
            raise RolloutLimit("the rollout has used up max_turns = 3")
        text = self.texts[len(self.prompts)]
        self.prompts.append(list(ids))
        self.sampled.append(self.tokenizer.encode_text(text + "<|im_end|>"))
        return Completion(self.sampled[-1], [-1.0] * len(self.sampled[-1]), FinishReason.STOP)

    def room(self, ids: Sequence[int]) -> int:
        return 100


def play(
    tokenizer: ChatTokenizer, family: str, table: dict[str, Any], *texts: str, messages: Any = "What is 6*7?"
) -> tuple[Trajectory, Policy]:
    tokenizer.tokenizer.chat_template = TEMPLATES[family]
    context = EnvironmentContext(
        tokenizer=tokenizer.tokenizer,
        eos_ids=tokenizer.eos_ids,
        max_length=1000,
        max_response_tokens=100,
        max_turns=8,
        seed=0,
        open_chat=partial(TemplateChat, tokenizer),
    )
    policy = Policy(tokenizer, texts)
    environment = build("environment", table).start(context)
    row = RolloutRequest([1], 0, 0, messages=messages, columns={"n": 3})
    try:
        return asyncio.run(environment.run(row, policy)), policy
    finally:
        environment.close()


@pytest.mark.parametrize("family", ["hermes tools", "qwen2.5", "chatml"])
def test_results_come_before_the_final_answer(tokenizer: ChatTokenizer, family: str) -> None:
    trajectory, policy = play(tokenizer, family, CALCULATOR, f"I call.\n{CALL}", "It is 42.")
    assert [message["role"] for message in trajectory.transcript][-4:] == (
        ["user", "assistant", "user" if family == "chatml" else "tool", "assistant"]
    )
    assert "42" in trajectory.transcript[-2]["content"]
    assert trajectory.transcript[-1]["content"] == "It is 42."
    first, second = policy.prompts
    assert second[: len(first) + len(policy.sampled[0])] == first + policy.sampled[0]
    text = tokenizer.decode_prompt(first)
    assert text.count('"calculator"') == 1
    assert trajectory.reward is None
    assert {key: value for key, value in trajectory.metrics.items() if value and key != "tool_seconds"} == {
        "calls": 1.0,
        "calls_ok": 1.0,
    }


def test_templates_without_tools_get_a_system_message(tokenizer: ChatTokenizer) -> None:
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is 6*7?"}]
    trajectory, _ = play(tokenizer, "chatml", CALCULATOR, "42", messages=chat)
    system = trajectory.transcript[0]["content"]
    assert system.startswith("Be short.\n\nYou can call these functions:")
    assert "<tool_call>" in system
    assert chat[0]["content"] == "Be short."


def test_failures_are_messages_and_limits_end_the_rollout(tokenizer: ChatTokenizer) -> None:
    table = {**CALCULATOR, "max_calls": 3}
    texts = (f"{CALL}<tool_call>{{</tool_call>", CALL.replace("6*7", "1/0"), CALL.replace("calc", "c"), CALL)
    trajectory, _ = play(tokenizer, "hermes tools", table, *texts)
    results = [message["content"] for message in trajectory.transcript if message["role"] == "tool"]
    assert results[0] == "42"
    assert results[1].startswith("Error: this tool call cannot be read")
    assert results[2] == "Error: ZeroDivisionError: division by zero"
    assert results[3:] == ["Error: no calls left, this conversation may make 3."] * 2
    assert trajectory.metrics["calls"] == 5
    assert trajectory.metrics["calls_over_limit"] == 2
    assert trajectory.metrics["unanswered"] == 1
    ids = [message["tool_call_id"] for message in trajectory.transcript if message["role"] == "tool"]
    assert ids == [f"call{number:05d}" for number in range(5)]


MODULE = '''
class Game:
    def reset(self, n, **row):
        self.left = n
        return f"There are {n} sticks."

    def take(self, count: int) -> str:
        """Take sticks.

        Args:
            count: Number of sticks.
        """
        self.left -= count
        return f"<|im_end|>{self.left} left"

    @property
    def reward(self):
        return 1.0 if self.left == 0 else 0.0
'''


def test_an_object_has_an_observation_and_a_reward(
    tokenizer: ChatTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stick_game.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    table = {"name": "tools", "tool": [{"name": "toolset", "factory": "stick_game:Game"}]}
    call = '<tool_call>{"name": "take", "arguments": {"count": 3}}</tool_call>'
    trajectory, policy = play(tokenizer, "hermes tools", table, call, "Done.", messages="Play.")
    assert trajectory.transcript[0]["content"] == "Play.\n\nThere are 3 sticks."
    assert trajectory.reward == 1.0
    # A special token in a result does not end its message.
    assert trajectory.transcript[2]["content"] == "< |im_end|>0 left"
    between = policy.prompts[1][len(policy.prompts[0]) + len(policy.sampled[0]) :]
    assert between.count(tokenizer.eos_ids[0]) == 1


def test_format_that_is_not_known_must_be_set(tokenizer: ChatTokenizer) -> None:
    monkey = TEMPLATES["chatml"] + "{{ tools | tojson if tools else '' }}"
    TEMPLATES["prints tools alone"] = monkey
    try:
        with pytest.raises(ConfigError, match="format must be set"):
            play(tokenizer, "prints tools alone", CALCULATOR, "42")
        trajectory, _ = play(tokenizer, "prints tools alone", {**CALCULATOR, "format": "hermes"}, CALL, "42")
        assert trajectory.metrics["calls_ok"] == 1
    finally:
        del TEMPLATES["prints tools alone"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "tools"}, "tool is missing"),
        ({"name": "tools", "tool": []}, "tool must name one tool or more"),
        ({**CALCULATOR, "format": "hermess"}, "did you mean 'hermes'"),
        ({"name": "tools", "tool": [{"name": "calculatr"}]}, "did you mean 'calculator'"),
        ({"name": "tools", "tool": [{"name": "calculator", "timeout": 1}]}, "timeout"),
    ],
)
def test_wrong_tables_are_errors(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build("environment", table)
    assert message in str(caught.value), str(caught.value)
