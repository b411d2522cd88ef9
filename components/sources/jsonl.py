"""Prompts and reference answers from a JSON Lines file."""

from __future__ import annotations

from dataclasses import dataclass

from titanrl.components.sources.records.files import json_lines
from titanrl.components.sources.records.prompts import PromptColumns, Prompts, checked_prompts
from titanrl.registry import register

__all__ = ["JSONLines"]

OWNER = "source 'jsonl'"


@register("source", "jsonl")
@dataclass(frozen=True, slots=True, kw_only=True)
class JSONLines(PromptColumns):
    """Prompts from a JSON Lines file: one object per line, whose prompt is plain text or a list of chat
    messages.

    `{"prompt": "What is 2 + 2?", "answer": "4"}` or `{"messages": [{"role": "user", "content": "What is 2 +
    2?"}], "answer": "4"}`.

    A reference answer that is not a text is passed to the rewards as JSON. Blank lines are skipped; every
    other line is checked when the file is opened.
    """

    path: str
    """Path of the file, UTF-8, relative to the working directory."""

    def open(self) -> Prompts:
        """Returns the prompts.

        Raises:
            ConfigError: the file does not exist, has no rows, or has invalid rows (reports the first ten,
                with file, line, key and remedy).
        """
        return checked_prompts(self, json_lines(self.path, OWNER))
