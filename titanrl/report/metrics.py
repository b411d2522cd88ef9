"""Reader of metrics.jsonl; metrics of runs recorded under earlier names are renamed on read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from titanrl.report.jsonl import read_jsonl

__all__ = ["read_metrics"]

RENAMED = {
    "sample/worse_response_tokens_mean": "sample/incorrect_response_tokens_mean",
    "sample/logprob_gap": "sample/logprob_diff",
    "sample/redraws": "sample/resample_attempts",
    "reward/less_kl": "reward/kl_penalized",
    "update/left_out": "update/early_stopped",
    "data/trained_tokens": "data/loss_tokens",
    "eval/longer_accuracy": "eval/length_baseline_accuracy",
}
"""Earlier name -> name. ``eval/majority_of_<n>`` is ``eval/maj_at_<n>``."""


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a metrics.jsonl, one per step in ascending order, with the current names of metrics.

    If a step has several lines, the last one counts. Lines without a step are skipped.
    """
    lines = {line["step"]: line for line in read_jsonl(path) if isinstance(line.get("step"), int)}
    for _, line in sorted(lines.items()):
        yield {_current_name(name): value for name, value in line.items()}


def _current_name(name: str) -> str:
    return RENAMED.get(name) or re.sub(r"^eval/majority_of_(?=\d+$)", "eval/maj_at_", name)
