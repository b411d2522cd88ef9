"""Paths that a user gives, before they reach the file system."""

from __future__ import annotations

import unicodedata

from titanrl.errors import ConfigError

__all__ = ["has_control_characters", "refuse_control_characters"]


def has_control_characters(text: str) -> bool:
    """Whether a text has control characters or unpaired surrogates, which no path should have."""
    return any(unicodedata.category(character) in ("Cc", "Cs") for character in text)


def refuse_control_characters(text: str, name: str, *, file: str | None = None) -> None:
    """Refuses a path with control characters or unpaired surrogates.

    Args:
        text: the path.
        name: how the message names it.
        file: the experiment file that gives it.

    Raises:
        ConfigError: the path has such a character.
    """
    if has_control_characters(text):
        raise ConfigError(f"{name} must not have control characters, got {text!a}.", file=file)
