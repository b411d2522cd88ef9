"""Append-only JSON lines that survive an interruption at any byte and continue after a resume."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

__all__ = ["JsonLines", "last_line", "read_jsonl"]

BLOCK = 1 << 16
"""Bytes read at a time from the end of a file."""


class JsonLines:
    """A file of one JSON object per line, each flushed when it is written.

    Args:
        path: the file.
        first_step: lines of this step and later are dropped because they will be written again; so is an
            incomplete last line.
        key: key of the step in each line.
    """

    def __init__(self, path: Path, first_step: int = 0, *, key: str = "step") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            earlier = [line for line in read_jsonl(path) if line[key] < first_step]
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_text("".join(_dump(line) for line in earlier))
            os.replace(temporary, path)
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one object; numbers that JSON lacks (NaN, infinities) become null."""
        self._file.write(_dump(line))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file; an incomplete last line is skipped."""
    # Not splitlines, which also splits at separators inside texts. The last line may end within a character.
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return


def last_line(path: Path) -> dict[str, Any] | None:
    """Return the last object of a file, None if there is none; an incomplete last line is skipped.

    Only the end of the file is read.
    """
    with path.open("rb") as file:
        position, end = file.seek(0, os.SEEK_END), b""
        while position > 0:
            size = min(BLOCK, position)
            position = file.seek(position - size)
            end = file.read(size) + end
            complete = end if position == 0 else end.partition(b"\n")[2]
            for line in reversed(complete.split(b"\n")):
                try:
                    last: dict[str, Any] = json.loads(line)
                except ValueError:  # Incomplete: not JSON, or cut within a character.
                    continue
                return last
    return None


def _dump(line: Mapping[str, Any]) -> str:
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
    return json.dumps(finite, ensure_ascii=False) + "\n"
