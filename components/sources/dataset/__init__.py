"""The source `dataset`: offline examples from files or a Hugging Face dataset."""

from titanrl.components.sources.dataset.source import Dataset, Examples

__all__ = ["Dataset", "Examples"]
