"""One file per model family, whose FAMILY is its record: see titanrl.models.family."""

from __future__ import annotations

__all__ = ["TINY"]

TINY = "llama"
"""model_type of the random tiny model if none is named."""
