"""The [report] and [profile] tables: display, logs and measurements of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from titanrl.errors import Problem
from titanrl.registry import Range, validated

if TYPE_CHECKING:
    from titanrl.config.tables import Loop

__all__ = ["Profile", "Report", "profile_problems"]


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Display and logs of a run."""

    progress: bool = True
    """Whether a live display shows the run; it needs a terminal."""
    tensorboard: bool = True
    """Whether scalars and texts are written to TensorBoard files in the run folder."""
    trackers: tuple[Literal["wandb", "trackio"], ...] = ()
    """Trackers that receive the settings and the metrics of each step; install with `pip install
    titanrl[NAME]`."""
    project: str = "titanrl"
    """Project name for the trackers."""
    prometheus_port: Annotated[int | None, Range("[1, 65535]")] = None
    """Port that serves the last step's metrics in Prometheus' text format, without authentication.
    Default: none."""
    samples_per_step: Annotated[int, Range("[0, inf)")] = 10
    """Responses per step that are written to samples.jsonl."""


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Profiles of single steps, on every rank, in the folder `profile` of the run."""

    steps: Annotated[tuple[int, ...], Range("[1, inf)")]
    """Steps to measure, counted from 1; the first steps are slower than the others."""
    trace: bool = True
    """Whether to write a trace of all operations, step-N-rank-R.json.gz, for https://ui.perfetto.dev, and
    a table of the slowest ones, step-N-rank-R.txt."""
    memory: bool = False
    """Whether to write allocations with their stacks, step-N-rank-R.pickle, for
    https://docs.pytorch.org/memory_viz; needs a GPU."""

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("steps must not be empty; leave [profile] out to measure no step.")
        if not (self.trace or self.memory):
            raise ValueError("trace and memory must not both be false; leave [profile] out for nothing.")


def profile_problems(profile: Profile | None, loop: Loop) -> list[Problem]:
    """Returns a Problem if [profile] names a step that never comes."""
    if profile is None or max(profile.steps) <= loop.steps:
        return []
    return [Problem("profile", f"must be <= {loop.steps}, [loop] steps, got {max(profile.steps)}.", "steps")]
