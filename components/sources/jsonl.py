"""Prompts and reference answers from a JSON Lines file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titanrl.errors import ConfigError, suggest
from titanrl.protocols import Prompt
from titanrl.registry import register

__all__ = ["JSONLines", "Rows"]

ROLES = ("system", "user", "assistant", "tool")


@register("source", "jsonl")
@dataclass(frozen=True, slots=True, kw_only=True)
class JSONLines:
    """One prompt a line: an object whose prompt is plain text or a list of chat messages.

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
        path, prompts, problems = Path(self.path), [], []
        try:
            lines = path.read_text(encoding="utf-8-sig").split("\n")
        except FileNotFoundError:
            raise ConfigError(f"source 'jsonl' path: '{path}' does not exist; check the path.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"source 'jsonl' path: '{path}' can't be read: {error}.") from None
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                prompts.append(self._prompt(line))
            except ValueError as error:
                problems.append(f"{path}:{number}: {error}")
        if problems:
            more = f"\nand {len(problems) - 10} more bad rows." if len(problems) > 10 else ""
            raise ConfigError("\n".join(problems[:10]) + more)
        if not prompts:
            raise ConfigError(f"source 'jsonl' path: '{path}' holds no row; add at least one prompt.")
        return Rows(tuple(prompts))

    def _prompt(self, line: str) -> Prompt:
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"not JSON ({error}); write one object a line.") from None
        if not isinstance(row, dict):
            raise ValueError(f"must be an object, got {type(row).__name__}; write one object a line.")
        keys = [self.prompt_key] if self.prompt_key else ["messages", "prompt"]
        key = next((key for key in keys if key in row), None)
        if key is None:
            near = suggest(keys[-1], row)
            raise ValueError(f"has no {' or '.join(map(repr, keys))}{near} Keys: {', '.join(row) or 'none'}.")
        answer = row.get(self.answer_key, "")
        text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
        return Prompt(messages=self._messages(key, row[key]), answer=text)

    def _messages(self, key: str, value: Any) -> tuple[dict[str, str], ...] | str:
        if isinstance(value, str) and value.strip():
            if not self.system:
                return value
            value = [{"role": "user", "content": value}]
        if not isinstance(value, list) or not value:
            raise ValueError(f"{key} must be a text or a list of messages, not empty, got {value!r:.80}.")
        for index, message in enumerate(value):
            place = f"{key}[{index}]"
            if not isinstance(message, dict):
                raise ValueError(f"{place} must be an object with role and content, got {message!r:.80}.")
            role, content = message.get("role"), message.get("content")
            if role not in ROLES:
                raise ValueError(f"{place}.role must be one of {', '.join(ROLES)}, got {role!r:.80}.")
            if not isinstance(content, str):
                raise ValueError(f"{place}.content must be a text, got {content!r:.80}.")
        messages = tuple({"role": message["role"], "content": message["content"]} for message in value)
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
