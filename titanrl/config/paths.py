"""Paths that a user gives, before they reach the file system."""

from __future__ import annotations

from titanrl.errors import ConfigError
from titanrl.registry.values import path_fault

__all__ = ["refuse_faulty_path"]


def refuse_faulty_path(text: str, name: str, *, file: str | None = None) -> None:
    """Refuses a path with control characters or unpaired surrogates, or one that is too long.

    Args:
        text: the path.
        name: how the message names it.
        file: the experiment file that gives it.

    Raises:
        ConfigError: it is no path.
    """
    if fault := path_fault(text):
        raise ConfigError(f"{name} {fault}, got {text!a:.80}.", file=file)
