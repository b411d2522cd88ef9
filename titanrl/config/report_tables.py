"""The tables of what a run shows, writes and measures of itself: [report] and [profile]."""

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
    """What a run shows and writes."""

    progress: bool = True
    """Whether a live display shows the run; it needs a terminal."""
    tensorboard: bool = True
    """Whether scalars and texts go to TensorBoard files in the run folder."""
    trackers: tuple[Literal["wandb", "trackio"], ...] = ()
    """Trackers that get the settings and each step's numbers, packages: `pip install titanrl[NAME]`."""
    project: str = "titanrl"
    """What the trackers call the runs together."""
    prometheus_port: Annotated[int | None, Range("[1, 65535]")] = None
    """Port from which anybody may read the last step's numbers in Prometheus' text form; omitted: none."""
    samples_per_step: Annotated[int, Range("[0, inf)")] = 10
    """Answers of each step that are written to samples.jsonl, >= 0."""


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What is measured of single steps, on every rank, in the run folder's `profile`."""

    steps: Annotated[tuple[int, ...], Range("[1, inf)")]
    """Steps that are measured, the first one is 1, and the first ones are slower than the others."""
    trace: bool = True
    """Whether a trace of all operations is written, step-N-rank-R.json.gz, for https://ui.perfetto.dev, and
    the slowest of them as a table, step-N-rank-R.txt."""
    memory: bool = False
    """Whether allocations with their stacks are written, step-N-rank-R.pickle, for
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
