"""Prompts of records: where each keeps its prompt and reference answer, and how they become a prompt."""

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

SHOWN = 10
"""Bad rows that a message shows; the others it counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptColumns:
    """Which columns of a record are read."""

    prompt_key: str = ""
    """Key of the prompt; omitted: `messages` or `prompt`, whichever a row has."""
    answer_key: str = "answer"
    """Key of the reference answer; rows may lack it, their answer is empty then."""
    system: str = ""
    """System message put before prompts that have none; plain text becomes a user's message then."""

    def parse(self, row: Mapping[str, Any]) -> Prompt:
        """Returns the prompt of a record; an answer that is no text goes to the rewards as JSON.

        Raises:
            ValueError: it has no prompt, or one that is neither a text nor messages.
        """
        keys = [self.prompt_key] if self.prompt_key else ["messages", "prompt"]
        # Arrow gives null where a row has none.
        key = next((key for key in keys if row.get(key) is not None), None)
        if key is None:
            near = did_you_mean(keys[-1], row)
            raise ValueError(f"has no {' or '.join(map(repr, keys))}{near} Keys: {', '.join(row) or 'none'}.")
        answer = row.get(self.answer_key)
        if not isinstance(answer, str):
            answer = "" if answer is None else json.dumps(answer, ensure_ascii=False)
        return Prompt(messages=self._messages(key, row[key]), answer=answer)

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
    """The prompts of some records, in their order; each is parsed when it is asked for."""

    columns: PromptColumns
    records: Records

    def __len__(self) -> int:
        return len(self.records.values)

    def __getitem__(self, index: int) -> Prompt:
        return self.columns.parse(self.records.values[index])


def checked_prompts(columns: PromptColumns, records: Records) -> Prompts:
    """Returns the prompts of some records, every one of which has been looked at.

    Raises:
        ConfigError: bad records: the first ten, with place, key and remedy, and how many more.
    """
    prompts, problems = Prompts(columns, records), []
    for index in range(len(prompts)):
        try:
            prompts[index]
        except ValueError as error:
            problems.append(f"{records.place(index)}: {error}")
    if problems:
        hidden = len(problems) - SHOWN
        raise ConfigError("\n".join([*problems[:SHOWN], *[f"and {hidden} more bad rows."][: hidden > 0]]))
    return prompts
