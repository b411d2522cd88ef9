"""Panels of a page: the metrics of each figure and the sections of figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from titanrl.report.figures import Line
from titanrl.report.record import RunRecord

__all__ = ["SECTIONS", "Panel", "other_panels", "sections"]

DASHES = ("solid", "dashed", "dotted", "dotdash")


class Panel(NamedTuple):
    """One figure of one or several metrics."""

    title: str
    keys: tuple[str, ...]
    """Metrics of the figure, each with its own dash; a run has no line for a metric that it lacks."""

    def lines(self, run: RunRecord, colour: str) -> list[Line]:
        """Return the lines of a run; a metric with bounds, ``_low`` and ``_high``, gets an interval."""
        lines = []
        for number, key in enumerate(key for key in self.keys if key in run.keys):
            has_interval = {f"{key}_low", f"{key}_high"} <= run.keys
            steps, values = run.series(key, *([f"{key}_low", f"{key}_high"] if has_interval else []))
            low, high = values[1:] if has_interval else (None, None)
            line = Line(
                run.name,
                colour,
                steps,
                values[0],
                low,
                high,
                dash=DASHES[number % len(DASHES)],
                has_markers=key.startswith("eval/"),
                detail=key if len(self.keys) > 1 else "",
            )
            lines.append(line)
        return lines


SECTIONS: dict[str, tuple[Panel, ...]] = {
    "Results": (
        Panel("held-out score with 95% interval", ("eval/score",)),
        Panel("held-out loss", ("eval/loss",)),
        Panel("held-out accuracy", ("eval/accuracy",)),
        Panel("training reward", ("reward/mean",)),
        Panel("training loss", ("loss/total",)),
        Panel("training accuracy", ("loss/accuracy",)),
        Panel("margin", ("loss/margin",)),
        Panel("share of groups with equal rewards", ("advantage/frac_zero_std",)),
    ),
    "Policy": (
        Panel("KL to the reference policy, nats", ("kl/value",)),
        Panel("entropy, nats", ("loss/entropy",)),
        Panel(
            "response tokens: median, 95th percentile (dashed)",
            ("sample/response_tokens_p50", "sample/response_tokens_p95"),
        ),
        Panel("share of truncated responses", ("sample/truncated_fraction",)),
        Panel("share of clipped tokens", ("loss/clip_fraction",)),
        Panel("gradient norm before clipping", ("update/grad_norm",)),
        Panel("learning rate", ("update/lr",)),
        Panel("trainer/sampler mismatch, nats", ("sample/logprob_diff", "correction/mismatch_kl")),
        Panel("staleness of samples, policy versions", ("sample/staleness_mean", "sample/staleness_max")),
        Panel("turns per rollout", ("environment/turns",)),
        Panel(
            "share of rollouts that failed, or used up their limits",
            ("environment/failed_fraction", "environment/limited_fraction"),
        ),
        Panel("critic: explained variance", ("critic/explained_variance",)),
        Panel("critic: loss", ("critic/loss",)),
        Panel("tokens per second", ("time/tokens_per_second",)),
    ),
}
"""Section -> its panels; panels without values are left out of a page."""


def sections(runs: Sequence[RunRecord]) -> dict[str, list[Panel]]:
    """Return section -> its panels, including one for each reward if the runs have several."""
    panels_of = {title: list(panels) for title, panels in SECTIONS.items()}
    rewards = [key for run in runs for key in _reward_keys(run)]
    if len(set(rewards)) > 1:
        labels = [key.removeprefix("reward/") for key in dict.fromkeys(rewards)]
        panels_of["Results"] += [Panel(f"reward {label}", (f"reward/{label}",)) for label in labels]
    # The policy-gradient loss is about 0 by construction.
    if all("reward/mean" in run.keys for run in runs):
        panels_of["Results"] = [panel for panel in panels_of["Results"] if panel.keys != ("loss/total",)]
    return panels_of


def other_panels(runs: Sequence[RunRecord]) -> list[Panel]:
    """Return a panel for each metric that no section has, without interval bounds and times."""
    in_sections = {key for panels in sections(runs).values() for panel in panels for key in panel.keys}
    known = {key for run in runs for key in run.keys}
    rest = sorted(key for key in known - in_sections if not key.startswith("time/"))
    return [Panel(key, (key,)) for key in rest if not _is_bound(key, known)]


def _reward_keys(run: RunRecord) -> list[str]:
    tables = run.table.get("reward", [])
    keys = [f"reward/{each.get('label') or each.get('name')}" for each in tables]
    return [key for key in keys if key in run.keys]


def _is_bound(key: str, known: set[str]) -> bool:
    stem = key.removesuffix("_low").removesuffix("_high")
    return stem != key and stem in known
