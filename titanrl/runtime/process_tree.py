"""Resources of a tree of processes: what it uses, from /proc, and a control group that bounds it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["ControlGroup", "Usage", "tree", "usage"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_GROUP = re.compile(r"titanrl-(\d+)-\d+")


class Usage(NamedTuple):
    """What a tree of processes uses."""

    memory_bytes: int
    """Resident memory; a page that several processes share counts once."""
    cpu_seconds: float
    tasks: int
    """Threads of all processes."""


def tree(pid: int) -> list[int]:
    """Return a process and its living descendants, by the children files of /proc."""
    pids, queue = [pid], [pid]
    while queue:
        parent = queue.pop()
        for file in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = [int(child) for child in file.read_text().split()]
                pids += children
                queue += children
    return pids


def usage(pid: int) -> Usage:
    """Return what a process and its descendants use; processes that end meanwhile count as nothing."""
    memory, cpu, tasks = 0, 0.0, 0
    for each in tree(pid):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The command name, in parentheses, may contain spaces. Fields from 14: utime, stime and those of
            # children that were waited for; 20: threads.
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            cpu += sum(map(int, fields[11:15])) / _TICKS
            tasks += int(fields[17])
            memory += _memory(each)
    return Usage(memory, cpu, tasks)


def _memory(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


class ControlGroup:
    """Control groups, of version 1 or 2, that bound memory and tasks of the processes in them.

    Args:
        folders: one folder per hierarchy.
    """

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders

    @classmethod
    def create(cls, memory_bytes: int, tasks: int) -> ControlGroup | None:
        """Create a group below this process's own; None where that is not permitted.

        Groups that an ended process left behind are removed.

        Args:
            memory_bytes: limit of the memory of all processes together, page cache included.
            tasks: limit of the number of threads.
        """
        made: list[Path] = []
        try:
            cls.remove_leftovers()
            for parent, limits in _parents(memory_bytes, tasks):
                number = sum(1 for _ in parent.glob(f"titanrl-{os.getpid()}-*"))
                folder = parent / f"titanrl-{os.getpid()}-{number}"
                folder.mkdir()
                made.append(folder)
                for name, value in limits.items():
                    (folder / name).write_text(str(value))
        except OSError:
            cls(made).remove()
            return None
        return cls(made) if made else None

    @staticmethod
    def remove_leftovers() -> bool:
        """Remove the groups of processes that have ended; return whether some remain for a while."""
        remaining = False
        with contextlib.suppress(OSError):
            for parent in _own_groups().values():
                for folder in parent.glob("titanrl-*"):
                    match = _GROUP.fullmatch(folder.name)
                    if match and not Path(f"/proc/{match[1]}").exists():
                        try:
                            folder.rmdir()
                        except OSError:
                            remaining = True
        return remaining

    def add(self, pid: int) -> None:
        """Move a process into the group; its later children are in it too.

        Raises:
            OSError: the process has ended, or moving is not permitted.
        """
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Remove the group, whose processes must have ended."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
        self.folders = []


def _own_groups() -> dict[str, Path]:
    """Return this process's own group by controller of version 1, or that of version 2 under ""."""
    root, own = Path("/sys/fs/cgroup"), dict[str, str]()
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path.lstrip("/")))
    if "memory" in own and "pids" in own:
        return {name: root / name / own[name] for name in ("memory", "pids")}
    return {"": root / own[""]} if "" in own else {}


def _parents(memory_bytes: int, tasks: int) -> Iterator[tuple[Path, dict[str, int]]]:
    """Yield this process's own group in each hierarchy needed, with the limits by file name."""
    for name, parent in _own_groups().items():
        if name == "memory":
            yield parent, {"memory.limit_in_bytes": memory_bytes}
        elif name == "pids":
            yield parent, {"pids.max": tasks}
        else:
            # Fails with EBUSY where the group holds processes: only the root group may have both.
            (parent / "cgroup.subtree_control").write_text("+memory +pids")
            yield parent, {"memory.max": memory_bytes, "memory.swap.max": 0, "pids.max": tasks}
