"""Prompts from records: the columns of the prompt and the reference answer, and their conversion."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from titanrl.components.sources.records.files import Records
from titanrl.components.sources.records.rows import parse_messages
from titanrl.errors import ConfigError, did_you_mean
from titanrl.protocols import Messages, Prompt

__all__ = ["PromptColumns", "Prompts", "checked_prompts"]

MAX_REPORTED = 10
"""Number of invalid rows to report in full; the rest are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptColumns:
    """Columns of a record that form a prompt."""

    prompt_key: str = ""
    """Key of the prompt; omitted: `messages` or `prompt`, whichever the row has."""
    answer_key: str = "answer"
    """Key of the reference answer; rows without it have an empty one."""
    system: str = ""
    """System message for prompts that have none; plain text then becomes a user message."""

    def parse(self, row: Mapping[str, Any]) -> Prompt:
        """Returns the prompt of a record; a reference answer that is not a text becomes JSON.

        Raises:
            ValueError: the record has no prompt, or one that is neither a text nor a list of messages.
        """
        keys = [self.prompt_key] if self.prompt_key else ["messages", "prompt"]
        # Arrow returns null for a missing value.
        key = next((key for key in keys if row.get(key) is not None), None)
        if key is None:
            suggestion = did_you_mean(keys[-1], row)
            raise ValueError(
                f"has no {' or '.join(map(repr, keys))}{suggestion} Keys: {', '.join(row) or 'none'}."
            )
        reference = row.get(self.answer_key)
        if not isinstance(reference, str):
            reference = "" if reference is None else json.dumps(reference, ensure_ascii=False)
        columns = {name: value for name, value in row.items() if name not in (key, self.answer_key)}
        return Prompt(messages=self._messages(key, row[key]), answer=reference, columns=columns)

    def _messages(self, key: str, value: Any) -> Messages | str:
        if isinstance(value, str) and value.strip():
            if not self.system:
                return value
            value = [{"role": "user", "content": value}]
        messages = parse_messages(key, value)
        if self.system and messages[0]["role"] != "system":
            messages = ({"role": "system", "content": self.system}, *messages)
        return messages


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
            problems.append(f"{records.location(index)}: {error}")
    if problems:
        num_hidden = len(problems) - MAX_REPORTED
        raise ConfigError(
            "\n".join([*problems[:MAX_REPORTED], *[f"and {num_hidden} more invalid rows."][: num_hidden > 0]])
        )
    return prompts
