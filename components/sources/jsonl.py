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
    """Reads one prompt a line: an object whose prompt is plain text or a list of chat messages.

    `{"prompt": "What is 2 + 2?", "answer": "4"}` or
    `{"messages": [{"role": "user", "content": "What is 2 + 2?"}], "answer": "4"}`.

    An answer that is an object goes to the rewards as JSON. Blank lines are skipped; every other line is
    checked when the file is opened.
    """

    path: str
    """The file, UTF-8, relative to the working directory."""

    def open(self) -> Prompts:
        """Returns the prompts.

        Raises:
            ConfigError: no such file, no row in it, or bad rows (the first ten, with file, line, key and
            remedy).
        """
        return checked_prompts(self, json_lines(self.path, OWNER))
