"""Prompts and reference answers from Parquet or a Hugging Face dataset."""

from __future__ import annotations

from dataclasses import dataclass

from titanrl.components.sources.records.files import open_records
from titanrl.components.sources.records.prompts import PromptColumns, Prompts, checked_prompts
from titanrl.registry import register

__all__ = ["PromptDataset"]

OWNER = "source 'prompt_dataset'"


@register("source", "prompt_dataset")
@dataclass(frozen=True, slots=True, kw_only=True)
class PromptDataset(PromptColumns):
    """Reads one prompt a record: plain text or a list of chat messages, and maybe a reference answer.

    An answer that is no text goes to the rewards as JSON. Every record is checked when the source is opened.
    """

    path: str
    """A .parquet or .jsonl file or a folder, relative to the working directory, or a hub's id."""
    split: str | None = None
    """Split of a Hugging Face dataset, also a slice such as train[:1000]; omitted: train."""
    subset: str | None = None
    """Named configuration of a Hugging Face dataset; omitted: its only one."""

    def open(self) -> Prompts:
        """Returns the prompts.

        Raises:
            ConfigError: no such data, no record in it, or bad ones (the first ten, with place, column and
            remedy).
        """
        return checked_prompts(self, open_records(self.path, self.split, self.subset, OWNER))
