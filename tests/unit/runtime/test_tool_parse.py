"""Tool calls in responses: formats of model families, thoughts, and calls that cannot be read."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.unit.data.chat_templates import PRINTS_CALLS, SPECIAL, TEMPLATES
from titanrl.data.tokenizer import ChatTokenizer
from titanrl.models import tiny
from titanrl.protocols.tools import ToolCall
from titanrl.runtime.tools.formats import FORMATS
from titanrl.runtime.tools.parse import ToolParser, opens_thoughts, prints_tools, recognise

SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "parameters": {
                "properties": {
                    "text": {"type": "string"},
                    "n": {"type": "integer"},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                }
            },
        },
    }
]
FIND = ToolCall("find", {"text": "3", "n": 2})

WRITTEN = {
    "hermes": '<tool_call>\n{"name": "find", "arguments": {"text": "3", "n": 2}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=find>\n<parameter=text>\n3\n</parameter>\n<parameter=n>\n2\n"
    "</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>find\n<arg_key>text</arg_key>\n<arg_value>3</arg_value>\n<arg_key>n</arg_key>\n"
    "<arg_value>2</arg_value>\n</tool_call>",
    "mistral": '[TOOL_CALLS] [{"name": "find", "arguments": {"text": "3", "n": 2}, "id": "call00001"}]',
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>find\n```json\n"
    '{"text": "3", "n": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "llama3": '{"name": "find", "parameters": {"text": "3", "n": 2}}',
}
OTHERS = [
    ("llama3", '<|python_tag|>{"name": "find", "parameters": {"text": "3", "n": 2}}'),
    ("llama3", '\n{"type": "function", "name": "find", "parameters": {"text": "3", "n": 2}}'),
    ("mistral", '[TOOL_CALLS]find[ARGS]{"text": "3", "n": 2}'),
    ("mistral", '[TOOL_CALLS]find[CALL_ID]abc123def[ARGS]{"text": "3", "n": 2}'),
    ("mistral", '[TOOL_CALLS]find{"text": "3", "n": 2}'),
    (
        "deepseek",
        '<｜tool▁call▁begin｜>find<｜tool▁sep｜>{"text": "3", "n": 2}<｜tool▁call▁end｜>',
    ),
    ("glm", '<tool_call>find\n{"text": "3", "n": 2}</tool_call>'),
    ("hermes", '<tool_call>{"name": "find", "arguments": "{\\"text\\": \\"3\\", \\"n\\": 2}"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "find", "arguments": {"text": "3", "n": 2}}'),
]


@pytest.mark.parametrize(("name", "text"), [*WRITTEN.items(), *OTHERS])
def test_calls_of_each_format_are_read(name: str, text: str) -> None:
    turn = ToolParser(name, SCHEMAS).parse(text)
    assert (turn.tool_calls, turn.problems, turn.content) == ((FIND,), (), "")


def test_every_format_is_tested() -> None:
    assert set(WRITTEN) == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_text_without_a_call_is_content(name: str) -> None:
    for text in ("The result is 4.", "", 'It is {"a": 1}.', "[1, 2]", "<tool>"):
        turn = ToolParser(name, SCHEMAS).parse(text)
        assert (turn.content, turn.calls, turn.reasoning_content) == (text, (), "")


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "glm", "mistral", "deepseek"])
def test_content_and_thoughts_stand_before_the_calls(name: str) -> None:
    text = f"<think>\nA <tool_call>{{}}</tool_call> I could make.\n</think>\n\nLet me look.\n{WRITTEN[name]}"
    turn = ToolParser(name, SCHEMAS).parse(text)
    assert turn.reasoning_content == "A <tool_call>{}</tool_call> I could make."
    assert (turn.content, turn.calls) == ("Let me look.", (FIND,))


def test_thoughts_that_the_prompt_opens_need_no_begin() -> None:
    parser = ToolParser("hermes", SCHEMAS, opens_thoughts=True)
    turn = parser.parse(f"I look.</think>{WRITTEN['hermes']}")
    assert (turn.reasoning_content, turn.calls) == ("I look.", (FIND,))
    unclosed = parser.parse(f"I look. {WRITTEN['hermes']}")
    assert (unclosed.content, unclosed.calls) == ("", ())
    assert ToolParser("hermes").parse("<think>and on").reasoning_content == "and on"


def test_several_calls_and_problems_keep_their_order() -> None:
    good = WRITTEN["hermes"]
    turn = ToolParser("hermes", SCHEMAS).parse(f"{good}\n<tool_call>{{'name'}}</tool_call>\n{good}")
    assert turn.calls == (FIND, turn.problems[0], FIND)
    assert turn.problems[0] == (
        "this tool call cannot be read: its JSON is invalid: Expecting property name enclosed in double "
        "quotes at character 2."
    )
    llama = ToolParser("llama3", SCHEMAS).parse("; ".join([WRITTEN["llama3"]] * 2))
    assert llama.calls == (FIND, FIND)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("hermes", "<tool_call></tool_call>", "its JSON is invalid"),
        ("hermes", '<tool_call>{"name": "find", "arguments": {"te', "its JSON is invalid"),
        ("hermes", "<tool_call>[1]</tool_call>", "it must be a JSON object such as"),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
            "its arguments must be a JSON obj",
        ),
        ("hermes", f"<tool_call>{'[' * 100_000}</tool_call>", "its JSON is nested too deeply"),
        ("hermes", f"<tool_call>{'1' * 10_000}</tool_call>", "Exceeds the limit"),
        ("hermes", WRITTEN["qwen3_coder"], "its JSON is invalid"),
        (
            "qwen3_coder",
            "<tool_call><function=f><parameter=a>1</function></tool_call>",
            "has no </parameter>",
        ),
        ("qwen3_coder", "<tool_call><function=find><parameter=text>abc", "it must be <function=NAME>"),
        ("glm", "<tool_call>what is this</tool_call>", "it must be the name of a function"),
        ("glm", "<tool_call>find<arg_key>text</arg_key><arg_value>3", "it must be the name of a function"),
        ("mistral", '[TOOL_CALLS] [{"name": "find"', "its JSON is invalid"),
        ("mistral", "[TOOL_CALLS]", "it must be a JSON array"),
        ("mistral", "[TOOL_CALLS] [3]", "it must be a JSON object such as"),
        ("deepseek", "<｜tool▁call▁begin｜>find", "it has no <｜tool▁sep｜>"),
        ("deepseek", "<｜tool▁call▁begin｜>find<｜tool▁sep｜>{", "its JSON is invalid"),
        ("llama3", '<|python_tag|>{"name": ', "its JSON is invalid"),
        ("llama3", '{"name": 3}', "it must be a JSON object such as"),
    ],
)
def test_calls_that_cannot_be_read_are_problems(name: str, text: str, reason: str) -> None:
    turn = ToolParser(name, SCHEMAS).parse(text)
    (problem,) = turn.calls
    assert isinstance(problem, str)
    assert problem.startswith("this tool call cannot be read: ")
    assert reason in problem


def test_arguments_written_as_text_get_the_types_of_the_schema() -> None:
    text = (
        "<tool_call><function=find><parameter=text>\nline 1\n  line 2\n</parameter>"
        "<parameter=n>many</parameter><parameter=note>null</parameter><parameter=other>[1]</parameter></function></tool_call>"
    )
    (call,) = ToolParser("qwen3_coder", SCHEMAS).parse(text).tool_calls
    assert call.arguments == {"text": "line 1\n  line 2", "n": "many", "note": None, "other": [1]}


def test_any_text_is_parsed() -> None:
    pieces = [
        *SPECIAL,
        *WRITTEN.values(),
        "{",
        "}",
        '"',
        "[",
        "]",
        "name",
        "<function=",
        ">",
        "</think>",
        "[ARGS]",
    ]
    pieces += [
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "<｜tool▁sep｜>",
        "\n",
        ",",
        ":",
    ]
    pieces += ["<｜tool▁call▁begin｜>", "<|python_tag|>", "1", "\ud800", "é", "```json"]
    draw = random.Random(0)
    for _ in range(400):
        text = "".join(draw.choices(pieces, k=draw.randint(1, 12)))
        for name in FORMATS:
            turn = ToolParser(name, SCHEMAS, opens_thoughts=draw.random() < 0.2).parse(text)
            assert len(turn.calls) == len(turn.tool_calls) + len(turn.problems)


def test_an_unknown_format_is_an_error() -> None:
    with pytest.raises(ValueError, match="did you mean 'hermes'"):
        ToolParser("hermess")


# ------------------------------------------------------------------------------------- chat templates

CALLS = {
    "qwen3-coder": "<tool_call>\\n<function={{ f.name }}>\\n{% for k, v in f.arguments.items() %}"
    "<parameter={{ k }}>\\n{{ v }}\\n</parameter>\\n{% endfor %}</function>\\n</tool_call>",
    "glm-4.5": "\\n<tool_call>{{ f.name }}\\n{% for k, v in f.arguments.items() %}"
    "<arg_key>{{ k }}</arg_key>\\n<arg_value>{{ v }}</arg_value>\\n{% endfor %}</tool_call>",
    "deepseek-v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\\n"
    "```json\\n{{ f.arguments }}\\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
}
"""Call in the style of further families; DeepSeek's template joins the arguments as text."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("tokenizer") / "tiny"
    tiny.create(folder)
    tokenizer = ChatTokenizer(folder).tokenizer
    tokenizer.add_special_tokens({"additional_special_tokens": [*SPECIAL, "<｜end▁of▁sentence｜>"]})
    return tokenizer


RECOGNISED = {
    "glm": "glm",
    "hermes tools": "hermes",
    "llama3 tools": "llama3",
    "mistral": "mistral",
    "qwen2.5": "hermes",
    "qwen3": "hermes",
    "qwen3 thinking": "hermes",
}


@pytest.mark.parametrize("family", TEMPLATES)
def test_format_is_recognised_from_the_template(tokenizer: Any, family: str) -> None:
    tokenizer.chat_template = TEMPLATES[family]
    assert recognise(tokenizer) == RECOGNISED.get(family)
    assert (family in RECOGNISED) == (family in PRINTS_CALLS)


@pytest.mark.parametrize(
    ("family", "name"), [("qwen3-coder", "qwen3_coder"), ("glm-4.5", "glm"), ("deepseek-v3", "deepseek")]
)
def test_format_of_a_call_in_text_is_recognised(tokenizer: Any, family: str, name: str) -> None:
    body = CALLS[family].replace("\\n", "\n")
    tokenizer.chat_template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{% set f = c.function %}" + body + "{% endfor %}{% endfor %}"
    )
    assert recognise(tokenizer) == name


def test_template_says_whether_it_prints_tools_and_opens_thoughts(tokenizer: Any) -> None:
    for family, prints, opens in (
        ("qwen3", True, False),
        ("chatml", False, False),
        ("deepseek-r1", False, True),
    ):
        tokenizer.chat_template = TEMPLATES[family]
        assert (prints_tools(tokenizer), opens_thoughts(tokenizer)) == (prints, opens), family
