"""Prompts and reference answers from a JSON Lines file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titanrl.components.sources.jsonl_rows import parse_lines, parse_messages, parse_object
from titanrl.errors import suggest
from titanrl.protocols import Messages, Prompt
from titanrl.registry import register

__all__ = ["JSONLines", "Rows"]


@register("source", "jsonl")
@dataclass(frozen=True, slots=True, kw_only=True)
class JSONLines:
    """Reads one prompt a line: an object whose prompt is plain text or a list of chat messages.

    `{"prompt": "What is 2 + 2?", "answer": "4"}` or
    `{"messages": [{"role": "user", "content": "What is 2 + 2?"}], "answer": "4"}`.

    An answer that is an object goes to the rewards as JSON. Blank lines are skipped; every other line is
    checked when the file is opened.
    """

    path: str
    """The file, UTF-8, relative to the working directory."""
    prompt_key: str = ""
    """Key of the prompt; omitted: `messages` or `prompt`, whichever a row has."""
    answer_key: str = "answer"
    """Key of the reference answer; rows may lack it, their answer is empty then."""
    system: str = ""
    """System message put before prompts that have none; plain text becomes a user's message then."""

    def open(self) -> Rows:
        """Returns the prompts.

        Raises:
            ConfigError: no such file, no row in it, or bad rows (the first ten, with file, line, key and
            remedy).
        """
        return Rows(tuple(parse_lines(Path(self.path), "source 'jsonl'", self._prompt)))

    def _prompt(self, line: str) -> Prompt:
        row = parse_object(line)
        keys = [self.prompt_key] if self.prompt_key else ["messages", "prompt"]
        key = next((key for key in keys if key in row), None)
        if key is None:
            near = suggest(keys[-1], row)
            raise ValueError(f"has no {' or '.join(map(repr, keys))}{near} Keys: {', '.join(row) or 'none'}.")
        answer = row.get(self.answer_key, "")
        text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
        return Prompt(messages=self._messages(key, row[key]), answer=text)

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
class Rows:
    """The prompts of a file, in its order."""

    prompts: tuple[Prompt, ...]

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: int) -> Prompt:
        return self.prompts[index]
