"""Append-only JSON lines that survive an interruption at any byte and continue after a resume."""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

__all__ = ["JsonLines", "last_line", "read_jsonl"]

BLOCK = 1 << 16
"""Bytes read at a time from the end of a file."""
MAX_LISTED = 5
"""Broken lines that a warning lists; it counts the rest."""


class JsonLines:
    """A file of one JSON object per line, each flushed when it is written.

    A resumed run repeats steps. Their earlier lines, and an incomplete last line, are moved to
    ``superseded/NAME-from-step-N.jsonl`` beside the file. All other bytes stay as they are, those of broken
    lines too.

    Args:
        path: the file.
        first_step: lines of this step and later are moved, because they will be written again. None: no
            complete line is moved.
        key: key of the step in each line.
    """

    def __init__(self, path: Path, first_step: int | None = None, *, key: str = "step") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.num_moved = 0
        """Number of lines that were moved."""
        if path.exists():
            self.num_moved = _move_superseded(path, first_step, key)
        # A lone surrogate, which UTF-8 lacks, becomes its JSON escape.
        self._file: IO[str] = path.open("a", encoding="utf-8", errors="backslashreplace")

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one object; numbers that JSON lacks (NaN, infinities) become null."""
        self._file.write(_dump(line))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file.

    Lines that are no JSON object are skipped with one warning per file. An incomplete last line is skipped
    silently, because it may be in the middle of being written.
    """
    broken = []
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if (line := _parse(raw)) is not None:
                yield line
            elif raw.endswith(b"\n") and raw.strip():
                broken.append(number)
    if broken:
        numbers = ", ".join(map(str, broken[:MAX_LISTED])) + (", ..." if len(broken) > MAX_LISTED else "")
        count = "1 broken line" if len(broken) == 1 else f"{len(broken)} broken lines"
        warnings.warn(f"{path}: skipped {count}: {numbers}.", stacklevel=2)


def last_line(path: Path) -> dict[str, Any] | None:
    """Return the last object of a file, None if there is none; broken lines are skipped.

    Only the end of the file is read.
    """
    with path.open("rb") as file:
        position, end = file.seek(0, os.SEEK_END), b""
        while position > 0:
            size = min(BLOCK, position)
            position = file.seek(position - size)
            end = file.read(size) + end
            complete = end if position == 0 else end.partition(b"\n")[2]
            for raw in reversed(complete.split(b"\n")):
                if (line := _parse(raw)) is not None:
                    return line
    return None


def _move_superseded(path: Path, first_step: int | None, key: str) -> int:
    """Move the lines that will be repeated, and an incomplete last line; return their number.

    A broken line after a repeated one belongs to the same steps and is moved with it.
    """
    moved: list[tuple[int, int]] = []  # Start and end of each line, in bytes.
    end, is_repeated = 0, False
    # Lines as they are written: the step comes first. Parsing them all takes minutes for large files.
    written = re.compile(rb'\{"' + re.escape(key.encode()) + rb'": (\d+)[,}]')
    with path.open("rb") as file:
        for raw in file:
            start, end = end, end + len(raw)
            match = written.match(raw) if raw.endswith(b"}\n") else None
            line = {key: int(match[1])} if match else _parse(raw)
            step = None if line is None else line.get(key)
            if isinstance(step, int):
                is_repeated = first_step is not None and step >= first_step
            is_incomplete = line is None and not raw.endswith(b"\n")
            if is_incomplete or (is_repeated and (line is None or step is not None)):
                moved.append((start, end))
    if moved:
        name = f"{path.stem}-incomplete" if first_step is None else f"{path.stem}-from-step-{first_step:05d}"
        _move(path, moved, end, path.parent / "superseded" / f"{name}{path.suffix}")
    if path.stat().st_size and not _ends_with_newline(path):
        with path.open("ab") as file:  # The last line is complete but for its end.
            file.write(b"\n")
    return len(moved)


def _move(path: Path, ranges: Sequence[tuple[int, int]], size: int, target: Path) -> None:
    """Append byte ranges of a file to ``target``, then remove them from the file.

    A crash in between leaves them in both files. The bytes before the first range are not written again if
    the ranges are the end of the file; otherwise the file is replaced atomically.
    """
    target.parent.mkdir(exist_ok=True)
    with path.open("rb") as source, target.open("ab") as file:
        for start, end in ranges:
            source.seek(start)
            raw = source.read(end - start)
            file.write(raw if raw.endswith(b"\n") else raw + b"\n")
        _sync(file)
    if sum(end - start for start, end in ranges) == size - ranges[0][0]:
        os.truncate(path, ranges[0][0])
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with path.open("rb") as source, temporary.open("wb") as file:
        position = 0
        for start, end in [*ranges, (size, size)]:
            source.seek(position)
            while position < start:
                position += file.write(source.read(min(BLOCK, start - position)))
            position = end
        _sync(file)
    os.replace(temporary, path)


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _parse(raw: bytes) -> dict[str, Any] | None:
    """Return the object of a line, None if it is no JSON object."""
    try:
        line = json.loads(raw)
    except ValueError:  # No JSON, or cut within a character.
        return None
    return line if isinstance(line, dict) else None


def _dump(line: Mapping[str, Any]) -> str:
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
    return json.dumps(finite, ensure_ascii=False) + "\n"
