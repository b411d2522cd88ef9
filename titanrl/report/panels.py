"""Which metrics a page draws, together with which, and under what title."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from titanrl.report.figures import Line
from titanrl.report.record import RunRecord

__all__ = ["Panel", "groups", "other_panels"]

DASHES = ("solid", "dashed", "dotted", "dotdash")


class Panel(NamedTuple):
    """One figure."""

    title: str
    keys: tuple[str, ...]
    """Metrics drawn in it, each with a dash of its own; of a run that has none there is no line."""

    def lines(self, run: RunRecord, colour: str) -> list[Line]:
        """Returns the run's lines; a metric that has bounds, ``_low`` and ``_high``, gets a band."""
        found = []
        for number, key in enumerate(key for key in self.keys if key in run.keys):
            has_band = {f"{key}_low", f"{key}_high"} <= run.keys
            steps, values = run.series(key, *([f"{key}_low", f"{key}_high"] if has_band else []))
            what = key if len(self.keys) > 1 else ""
            low, high = values[1:] if has_band else (None, None)
            found.append(
                Line(run.name, colour, steps, values[0], low, high, DASHES[number % len(DASHES)],
                     key.startswith("eval/"), what)
            )  # fmt: skip
        return found


GROUPS: dict[str, tuple[Panel, ...]] = {
    "Results": (
        Panel("held-out score, with its 95% interval", ("eval/score",)),
        Panel("held-out loss", ("eval/loss",)),
        Panel("held-out accuracy", ("eval/accuracy",)),
        Panel("training reward", ("reward/mean",)),
        Panel("training loss", ("loss/total",)),
        Panel("training accuracy", ("loss/accuracy",)),
        Panel("margin", ("loss/margin",)),
        Panel("share of prompts without a signal", ("advantage/frac_zero_std",)),
    ),
    "Policy": (
        Panel("KL to the reference, nats", ("kl/value",)),
        Panel("entropy, nats", ("loss/entropy",)),
        Panel("response tokens: median, 95th percentile (dashed)",
              ("sample/response_tokens_p50", "sample/response_tokens_p95")),
        Panel("share of answers cut off", ("sample/truncated_fraction",)),
        Panel("share of tokens clipped", ("loss/clip_fraction",)),
        Panel("gradient norm before clipping", ("update/grad_norm",)),
        Panel("learning rate", ("update/lr",)),
        Panel("mismatch of trainer and sampler, nats", ("sample/logprob_diff", "correction/mismatch_kl")),
        Panel("staleness of the samples, versions", ("sample/staleness_mean", "sample/staleness_max")),
        Panel("critic: explained variance", ("critic/explained_variance",)),
        Panel("critic: loss", ("critic/loss",)),
        Panel("tokens per second", ("time/tokens_per_second",)),
    ),
}  # fmt: skip
"""Section -> its figures; those that no run has are left out."""


def groups(runs: Sequence[RunRecord]) -> dict[str, list[Panel]]:
    """Returns section -> its figures, the parts of the runs' rewards among them."""
    found = {title: list(panels) for title, panels in GROUPS.items()}
    parts = [key for run in runs for key in _reward_parts(run)]
    if len(set(parts)) > 1:
        labels = [key.removeprefix("reward/") for key in dict.fromkeys(parts)]
        found["Results"] += [Panel(f"reward {label}", (f"reward/{label}",)) for label in labels]
    # The loss of a policy gradient is about 0 by construction and says nothing.
    if all("reward/mean" in run.keys for run in runs):
        found["Results"] = [panel for panel in found["Results"] if panel.keys != ("loss/total",)]
    return found


def other_panels(runs: Sequence[RunRecord]) -> list[Panel]:
    """Returns a panel for each metric that no group draws; bounds and times are drawn elsewhere."""
    drawn = {key for panels in groups(runs).values() for panel in panels for key in panel.keys}
    known = {key for run in runs for key in run.keys}
    rest = sorted(key for key in known - drawn if not key.startswith("time/"))
    return [Panel(key, (key,)) for key in rest if not _is_bound(key, known)]


def _reward_parts(run: RunRecord) -> list[str]:
    tables = run.table.get("reward", [])
    keys = [f"reward/{each.get('label') or each.get('name')}" for each in tables]
    return [key for key in keys if key in run.keys]


def _is_bound(key: str, known: set[str]) -> bool:
    stem = key.removesuffix("_low").removesuffix("_high")
    return stem != key and stem in known
