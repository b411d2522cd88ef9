"""What an experiment needs that this machine may lack: packages, a compiler, trackers, a GPU."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import Any

from titanrl.config.experiment import Experiment
from titanrl.errors import Problem
from titanrl.registry import declared, name_of

__all__ = ["missing_requirements"]


def missing_requirements(experiment: Experiment) -> list[Problem]:
    """Returns a Problem for each thing that it needs and that is not there."""
    return [*_packages(experiment), *_compiler(experiment), *_trackers(experiment), *_gpu(experiment)]


def _packages(experiment: Experiment) -> list[Problem]:
    parts: dict[str, Any] = {"sampler": experiment.sampler} | experiment.sources()
    parts |= {f"reward.{i}": each.component for i, each in enumerate(experiment.reward)}
    return [
        Problem(
            table,
            f"must be installed for {name_of(part)!r}: the package {package!r} is missing"
            + ("; install it, or use name = 'torch'." if table == "sampler" else "; install it."),
            "name",
        )
        for table, part in parts.items()
        for package in declared(part, "requires")  # None requires nothing.
        if not is_installed(package)
    ]


def _compiler(experiment: Experiment) -> list[Problem]:
    """Returns a Problem where torch.compile finds no compiler for what it writes."""
    name = os.environ.get("CXX", "g++")
    if not experiment.compile.enable or experiment.compile.backend != "inductor" or shutil.which(name):
        return []
    text = f"needs a C++ compiler, and {name!r} is not there; install it, name another in CXX, or say false."
    return [Problem("compile", text, "enable")]


def _trackers(experiment: Experiment) -> list[Problem]:
    """Returns a Problem for each tracker that is not installed."""
    return [
        Problem(
            "report", f"names {name!r}, which is not installed; pip install 'titanrl[{name}]'.", "trackers"
        )
        for name in experiment.report.trackers
        if not is_installed(name)
    ]


def _gpu(experiment: Experiment) -> list[Problem]:
    """Returns a Problem for each key that only a GPU can follow, where there is none."""
    problems = []
    if experiment.profile is not None and experiment.profile.memory:
        text = "needs a GPU, whose allocator keeps the record, and there is none; leave it out."
        problems.append(Problem("profile", text, "memory"))
    if experiment.checkpoint.enable and experiment.checkpoint.async_mode == "async_with_pinned_mem":
        text = "copies from a GPU, and there is none, got 'async_with_pinned_mem'; use 'async'."
        problems.append(Problem("checkpoint", text, "async_mode"))
    if problems:
        import torch

        if torch.cuda.is_available():
            return []
    return problems


def is_installed(package: str) -> bool:
    """Whether a package can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None
