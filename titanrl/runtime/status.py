"""What a process of a command does at the moment, readable by its parent even after it was killed."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

__all__ = ["attach", "create", "current", "describe", "read", "update"]

BYTES = 4096
"""Size of a status; one write replaces all of it."""

_fields: dict[str, Any] = {"stage": "start-up"}
_file: int | None = None


def create() -> int:
    """Return the descriptor of an empty status; it is a file without a name, so nothing is left of it."""
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def attach(descriptor: int) -> None:
    """Write the status of this process to a descriptor from ``create`` from now on."""
    global _file
    _file = descriptor
    update()


def update(**fields: Any) -> None:
    """Change fields of this process's status.

    Args:
        fields: ``stage``: its stage of work; ``step``: number of the training step, from 1; ``checkpoint``:
            step of the newest checkpoint; ``end``: "finished", or "reported" once an error was printed.
    """
    _fields.update(fields)
    if _file is not None:
        os.pwrite(_file, json.dumps(_fields).encode().ljust(BYTES)[:BYTES], 0)


def current() -> dict[str, Any]:
    """Return the fields of this process's status."""
    return dict(_fields)


def read(descriptor: int) -> dict[str, Any]:
    """Return the fields that another process wrote last; an empty dict if it wrote none."""
    text = os.pread(descriptor, BYTES, 0).strip()
    try:
        fields: dict[str, Any] = json.loads(text)
    except ValueError:
        return {}
    return fields


def describe(fields: dict[str, Any] | None = None) -> str:
    """Return a status as words: "stage update of step 3".

    Args:
        fields: a status; None: that of this process.
    """
    fields = _fields if fields is None else fields
    step = f" of step {fields['step']}" if "step" in fields else ""
    return f"stage {fields.get('stage', 'start-up')}{step}"
