"""Prompts from records: the columns of the prompt and the reference answer, and their conversion."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from titanrl.components.sources.records.files import Records
from titanrl.components.sources.records.rows import parse_messages, parse_tools
from titanrl.errors import ConfigError, did_you_mean, fold_faults
from titanrl.ops.columns import lookup
from titanrl.protocols import Messages, Prompt

__all__ = ["PromptColumns", "Prompts", "checked_prompts"]

MAX_REPORTED = 10
"""Number of kinds of faults to report in full; the rest are counted."""
ANSWER = "answer"
"""The default key of the reference answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptColumns:
    """Columns of a record that form a prompt."""

    prompt_key: str = ""
    """Key of the prompt; omitted: `messages` or `prompt`, whichever the row has."""
    answer_key: str = ANSWER
    """Key of the reference answer, also within tables: `reward_model.ground_truth`. Rows without it have an
    empty one; a key that no row has is refused."""
    system: str = ""
    """System message for prompts that have none; plain text then becomes a user message."""

    def parse(self, row: Mapping[str, Any]) -> Prompt:
        """Returns the prompt of a record; a reference answer that is not a text becomes JSON.

        Raises:
            ValueError: the record has no prompt, or one that is neither a text nor a list of messages.
        """
        keys = [self.prompt_key] if self.prompt_key else ["messages", "prompt"]
        # Arrow returns null for a missing value.
        key = next((key for key in keys if lookup(row, key) is not None), None)
        if key is None:
            suggestion = did_you_mean(keys[-1], row)
            raise ValueError(
                f"has no {' or '.join(map(repr, keys))}{suggestion} Keys: {', '.join(row) or 'none'}."
            )
        reference = lookup(row, self.answer_key)
        if not isinstance(reference, str):
            reference = "" if reference is None else json.dumps(reference, ensure_ascii=False)
        columns = {name: value for name, value in row.items() if name not in (key, self.answer_key)}
        messages = self._messages(key, lookup(row, key))
        tools = () if isinstance(messages, str) else _tools(row.get("tools"))
        return Prompt(messages=messages, answer=reference, columns=columns, tools=tools)

    def _messages(self, key: str, value: Any) -> Messages | str:
        if isinstance(value, str) and value.strip():
            if not self.system:
                return value
            value = [{"role": "user", "content": value}]
        messages = parse_messages(key, value)
        if self.system and messages[0]["role"] != "system":
            messages = ({"role": "system", "content": self.system}, *messages)
        return messages


def _tools(value: Any) -> tuple[Mapping[str, Any], ...]:
    """Returns the schemas in the column tools; () if a column of this name holds something else."""
    try:
        return parse_tools("tools", value)
    except ValueError:
        return ()


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts of records, in order; each is parsed when it is read."""

    columns: PromptColumns
    records: Records

    def __len__(self) -> int:
        return len(self.records.values)

    def __getitem__(self, index: int) -> Prompt:
        return self.columns.parse(self.records.values[index])


def checked_prompts(columns: PromptColumns, records: Records) -> Prompts:
    """Returns the prompts of records after parsing every record once.

    Raises:
        ConfigError: invalid records: the first ten with location, key and remedy, and the number of the rest.
    """
    prompts, problems = Prompts(columns, records), []
    for index in range(len(prompts)):
        try:
            prompts[index]
        except ValueError as error:
            problems.append((records.location(index), str(error)))
    if problems:
        lines = fold_faults(problems)
        hidden = len(lines) - MAX_REPORTED
        raise ConfigError(
            "\n".join([*lines[:MAX_REPORTED], *[f"and {hidden} more kinds of faults."][: hidden > 0]])
        )
    key, rows = columns.answer_key, [records.values[index] for index in range(len(prompts))]
    if key != ANSWER and all(lookup(row, key) is None for row in rows):
        names = dict.fromkeys(name for row in rows for name in _paths(row))
        raise ConfigError(
            f"answer_key {key!r} is in no row{did_you_mean(key, names)}; keys: {', '.join(names) or 'none'}."
        )
    return prompts


def _paths(row: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """Yields the keys of a record and of the tables in it, as ``lookup`` takes them."""
    for name, value in row.items():
        yield f"{within}{name}"
        if isinstance(value, Mapping):
            yield from _paths(value, f"{within}{name}.")
