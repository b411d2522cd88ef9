"""Objects of the user's by their dotted path, ``module:name``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

__all__ = ["load_dotted"]


def load_dotted(path: str, key: str = "function") -> Any:
    """Returns the object at ``module:name``.

    Args:
        path: importable module, also from the working directory, and name of the object in it.
        key: key of the table that holds the path, for errors.

    Raises:
        ValueError: there is no such object, or it cannot be called.
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ValueError(f"{key} must be 'module:name', got {path!r}.")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        value: Any = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except Exception as error:  # Whatever a user's file raises is a mistake of the experiment.
        text = f"{type(error).__name__}: {str(error).rstrip('.')}"
        raise ValueError(
            f"{key} {path!r} cannot be imported: {text}; correct it, or add its file to imports."
        ) from None
    if not callable(value):
        raise ValueError(f"{key} {path!r} must be a function, got {type(value).__name__}.")
    return value
