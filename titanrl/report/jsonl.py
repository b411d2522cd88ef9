"""Append-only JSON lines that survive a kill at any byte and carry on after a resume."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

__all__ = ["JsonLines", "last_line", "read_jsonl"]

BLOCK = 1 << 16
"""Bytes that are read at a time from the end of a file."""


class JsonLines:
    """A file of one JSON object a line, each flushed as it is written.

    Args:
        path: the file. first_step: lines of this step and later, and a torn last line, are dropped: they are
            written again. key: of the number of the step in each line.
    """

    def __init__(self, path: Path, first_step: int = 0, *, key: str = "step") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            kept = [line for line in read_jsonl(path) if line[key] < first_step]
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_text("".join(_dump(line) for line in kept))
            os.replace(temporary, path)
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def write(self, line: Mapping[str, Any]) -> None:
        """Appends one object; numbers that JSON lacks (NaN, infinities) become null."""
        self._file.write(_dump(line))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of a file; a last line torn by a kill is left out."""
    # Not splitlines: it also cuts at separators inside texts. A kill may tear the last line within a letter.
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return


def last_line(path: Path) -> dict[str, Any] | None:
    """Returns the last object of a file, reading no more than its end; one torn by a kill is left out.

    None: it holds none.
    """
    with path.open("rb") as file:
        place, end = file.seek(0, os.SEEK_END), b""
        while place > 0:
            size = min(BLOCK, place)
            place = file.seek(place - size)
            end = file.read(size) + end
            whole = end if place == 0 else end.partition(b"\n")[2]
            for line in reversed(whole.split(b"\n")):
                try:
                    found: dict[str, Any] = json.loads(line)
                except ValueError:  # Torn: no JSON, or cut within a letter.
                    continue
                return found
    return None


def _dump(line: Mapping[str, Any]) -> str:
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
    return json.dumps(finite, ensure_ascii=False) + "\n"
