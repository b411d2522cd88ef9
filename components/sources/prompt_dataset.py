"""Prompts and reference answers from Parquet files, JSON arrays or a Hugging Face dataset."""

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
    """Prompts from a Parquet file or a Hugging Face dataset: one per record, plain text or a list of chat
    messages.

    A record may have a reference answer; one that is not a text is passed to the rewards as JSON. Every
    record is checked when the source is opened.
    """

    path: str
    """Path of a .parquet, .jsonl or .json file or of a folder, relative to the working directory, or the id
    of a hub dataset. A .json file may hold one array of objects."""
    split: str | None = None
    """Split of a Hugging Face dataset, or a slice such as train[:1000]; omitted: train."""
    subset: str | None = None
    """Named configuration of a Hugging Face dataset; omitted: its only one."""

    def open(self) -> Prompts:
        """Returns the prompts.

        Raises:
            ConfigError: the data does not exist, has no records, or has invalid records (the first ten are
                reported, with location, column and remedy).
        """
        return checked_prompts(self, open_records(self.path, self.split, self.subset, OWNER))
