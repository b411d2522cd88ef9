"""Formats of tool calls, as the chat templates of model families print them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from titanrl.protocols.tools import ToolCall

__all__ = ["FORMATS", "Format", "Types"]

Types: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Name of each function -> schema of its parameters."""


class Format(NamedTuple):
    """A format of tool calls."""

    start: re.Pattern[str]
    """Where the calls begin; the text before is the content."""
    parse: Callable[[str, Types], Iterator[ToolCall | str]]
    """The part of a response from the first call on -> calls, or problems of those that cannot be read."""
    models: str
    """Model families that use it."""


JSON_CALL = '{"name": "FUNCTION", "arguments": {...}}'


def _loads(text: str) -> Any:
    """Return JSON.

    Raises:
        ValueError: with a short text about the place.
    """
    try:
        return json.loads(text, strict=False)
    except json.JSONDecodeError as error:
        raise ValueError(f"its JSON is invalid: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def _call(value: Any) -> ToolCall:
    """Return the call that a JSON value describes.

    Raises:
        ValueError: it describes none.
    """
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError(f"it must be a JSON object such as {JSON_CALL}")
    arguments = value.get("arguments", value.get("parameters"))
    return ToolCall(value["name"], _arguments(arguments))


def _arguments(value: Any) -> dict[str, Any]:
    if isinstance(value, str) and value.strip():
        value = _loads(value)
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"its arguments must be a JSON object, got {json.dumps(value)[:40]}")
    return value


def _problem(reason: object) -> str:
    return f"this tool call cannot be read: {reason}."


def _each(bodies: Iterator[str], read: Callable[[str], ToolCall]) -> Iterator[ToolCall | str]:
    for body in bodies:
        try:
            yield read(body)
        except ValueError as error:
            yield _problem(str(error).rstrip("."))


def _between(text: str, start: str, end: str) -> Iterator[str]:
    """Yield the texts between marks; the last one may lack its end, when the response was cut off."""
    for part in text.split(start)[1:]:
        yield part.partition(end)[0].strip()


# ------------------------------------------------------------------------------ <tool_call> ... </tool_call>


def _hermes(text: str, types: Types) -> Iterator[ToolCall | str]:
    return _each(_between(text, "<tool_call>", "</tool_call>"), lambda body: _call(_loads(body)))


def _qwen3_coder(text: str, types: Types) -> Iterator[ToolCall | str]:
    def read(body: str) -> ToolCall:
        match = re.fullmatch(r"<function=([^>\n]+)>(.*?)(</function>\s*)?", body, re.DOTALL)
        if match is None or match[3] is None:
            raise ValueError("it must be <function=NAME> with <parameter=NAME> elements and </function>")
        name, rest = match[1].strip(), match[2]
        pairs = re.findall(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", rest, re.DOTALL)
        if len(pairs) != rest.count("<parameter="):
            raise ValueError("a <parameter=NAME> has no </parameter>")
        return ToolCall(name, {key.strip(): _typed(name, key.strip(), value, types) for key, value in pairs})

    return _each(_between(text, "<tool_call>", "</tool_call>"), read)


def _glm(text: str, types: Types) -> Iterator[ToolCall | str]:
    def read(body: str) -> ToolCall:
        name, _, rest = body.partition("\n")
        if rest.lstrip().startswith("{") and re.fullmatch(r"[\w.:-]+", name.strip()):  # GLM 4
            return ToolCall(name.strip(), _arguments(rest.strip()))
        name, _, rest = body.partition("<arg_key>")
        name, rest = name.strip(), "<arg_key>" + rest if "<arg_key>" in body else ""
        pairs = re.findall(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", rest, re.DOTALL)
        if not re.fullmatch(r"[\w.:-]+", name) or len(pairs) != rest.count("<arg_key>"):
            raise ValueError(
                "it must be the name of a function, then <arg_key> and <arg_value> of each argument"
            )
        return ToolCall(name, {key.strip(): _typed(name, key.strip(), value, types) for key, value in pairs})

    return _each(_between(text, "<tool_call>", "</tool_call>"), read)


def _typed(name: str, key: str, value: str, types: Types) -> Any:
    """Return an argument that is written as text: JSON, unless the function takes text there."""
    schema = types.get(name, {}).get("properties", {}).get(key, {})
    options = [schema, *schema.get("anyOf", ())]
    try:
        parsed = _loads(value)
    except ValueError:
        return value
    takes_text = any(option.get("type") == "string" or "enum" in option for option in options)
    return value if takes_text and not (parsed is None and len(options) > 1) else parsed


# --------------------------------------------------------------------------------------------------- Llama 3


def _llama3(text: str, types: Types) -> Iterator[ToolCall | str]:
    text = text.removeprefix("<|python_tag|>").strip()
    decoder = json.JSONDecoder(strict=False)
    while text:
        try:
            value, end = decoder.raw_decode(text)
            yield _call(value)
        except json.JSONDecodeError as error:
            yield _problem(f"its JSON is invalid: {error.msg} at character {error.pos + 1}")
            return
        except (ValueError, RecursionError) as error:
            yield _problem(str(error).rstrip("."))
            return
        text = text[end:].lstrip("; \n\t").removeprefix("<|python_tag|>").strip()


# --------------------------------------------------------------------------------------------------- Mistral


def _mistral(text: str, types: Types) -> Iterator[ToolCall | str]:
    for part in text.split("[TOOL_CALLS]")[1:]:
        if part.lstrip().startswith(("[", "{")):
            try:
                value = _loads(part)
            except ValueError as error:
                yield _problem(error)
                continue
            items = value if isinstance(value, list) else [value]
            yield from _each(iter([json.dumps(item) for item in items]), lambda body: _call(_loads(body)))
        else:
            yield from _each(iter([part]), _named)


def _named(body: str) -> ToolCall:
    name, given, arguments = body.partition("[ARGS]")
    if not given:
        name, brace, rest = body.partition("{")
        arguments = brace + rest
    name = name.partition("[CALL_ID]")[0].strip()
    if not re.fullmatch(r"[\w.:-]+", name):
        raise ValueError("it must be a JSON array of calls, or the name of a function and its arguments")
    return ToolCall(name, _arguments(arguments))


# -------------------------------------------------------------------------------------------------- DeepSeek

_BEGIN, _END, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"


def _deepseek(text: str, types: Types) -> Iterator[ToolCall | str]:
    def read(body: str) -> ToolCall:
        name, separator, rest = body.partition(_SEPARATOR)
        if not separator:
            raise ValueError(f"it has no {_SEPARATOR}")
        fenced = re.fullmatch(r"\s*([^\n]+)\n```(?:json)?\n(.*?)\n?```\s*", rest, re.DOTALL)
        if fenced is not None:  # Before V3.1 the kind of the tool comes first.
            name, rest = fenced[1], fenced[2]
        return ToolCall(name.strip(), _arguments(rest.strip()))

    return _each(_between(text, _BEGIN, _END), read)


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "hermes": Format(re.compile("<tool_call>"), _hermes, "Hermes, Qwen 2.5, Qwen 3"),
        "qwen3_coder": Format(re.compile("<tool_call>"), _qwen3_coder, "Qwen3-Coder, Qwen 3.5"),
        "glm": Format(re.compile("<tool_call>"), _glm, "GLM 4 and later"),
        "mistral": Format(re.compile(r"\[TOOL_CALLS\]"), _mistral, "Mistral, Mixtral"),
        "deepseek": Format(re.compile("<｜tool▁call(?:s)?▁begin｜>"), _deepseek, "DeepSeek V3, R1, V3.1"),
        "llama3": Format(
            re.compile(r"<\|python_tag\|>|\A\s*(?=\{\s*\"(?:name|type|parameters|function)\")"),
            _llama3,
            "Llama 3.1 to 3.3",
        ),
    }
)
"""Name of each format -> the format."""
