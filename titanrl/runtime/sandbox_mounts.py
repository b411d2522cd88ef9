"""What a sandbox shows of the file system: the interpreter, system libraries and chosen packages."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

__all__ = ["PACKAGES", "base_python", "is_reachable_by_all", "mounts"]

PACKAGES = "/packages"
"""Folder in the sandbox that holds the packages."""
_SYSTEM = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/etc/alternatives")
_DEVICES = ("null", "zero", "random", "urandom")


def base_python() -> str:
    """Return the interpreter itself, outside of any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@cache
def mounts(packages: tuple[str, ...], scratch_bytes: int, files: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the options of bwrap that build a file system; all of it but /tmp is read-only.

    Args:
        packages: distributions whose modules, and those of their requirements, are in ``PACKAGES``.
        scratch_bytes: size of /tmp.
        files: further files to show, at their own paths.

    Raises:
        ModuleNotFoundError: a package is not installed.
    """
    library, shown = Path(sys.base_prefix, "lib"), {base_python(), *files}
    # bwrap makes the folders above a mount for their owner alone, so they are made before.
    bound = [library, *map(Path, (*shown, *_SYSTEM, f"{PACKAGES}/x", "/dev/x"))]
    parents = {parent for path in bound for parent in path.parents} - {Path("/")}
    options = []
    for parent in sorted(parents):
        if not str(parent).startswith(_SYSTEM):
            options += ["--perms", "0755", "--dir", str(parent)]
    for path in _SYSTEM:
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            options += ["--ro-bind", path, path]
    for path in sorted({str(library), *shown}):
        if not path.startswith(_SYSTEM):
            options += ["--ro-bind", path, path]
    for folder in (
        *library.glob("python3*/site-packages"),
        *library.glob("python3*/dist-packages"),
        *Path("/usr/lib").glob("python3*/dist-packages"),
    ):
        # Packages installed for the system are not the program's business.
        options += ["--tmpfs", str(folder), "--remount-ro", str(folder)]
    for name in _DEVICES:
        options += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for source in sorted(set(_sources(packages))):
        options += ["--ro-bind", str(source), f"{PACKAGES}/{source.name}"]
    # A file system of the sandbox's own, not the machine's.
    options += ["--perms", "1777", "--size", str(scratch_bytes), "--tmpfs", "/tmp"]  # nosec B108
    return (*options, "--remount-ro", "/", "--chdir", "/tmp")  # nosec B108


def _sources(packages: Iterable[str]) -> Iterator[Path]:
    """Yield the folders and files of packages and, recursively, of what they require without extras."""
    seen, queue = set[str](), list(packages)
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if name in packages:
                raise ModuleNotFoundError(f"package {name!r} is not installed") from None
            continue  # A requirement for another platform.
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            yield Path(str(distribution.locate_file(top)))
        queue += [
            re.split(r"[^\w.-]", text)[0] for text in distribution.requires or () if "extra ==" not in text
        ]


def is_reachable_by_all(path: str) -> bool:
    """Whether any user may enter each folder above a path."""
    return all(parent.stat().st_mode & 0o001 for parent in Path(path).resolve().parents)
