"""Metrics that were renamed: an old name that a file gives is an error that names the new one.

Renamed keys and values of a table are declared in the table's class, as ``renamed``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["METRICS", "renamed_metric"]

METRICS: Mapping[str, str] = MappingProxyType(
    {
        "sample/worse_response_tokens_mean": "sample/incorrect_response_tokens_mean",
        "sample/logprob_gap": "sample/logprob_diff",
        "sample/redraws": "sample/resample_attempts",
        "reward/less_kl": "reward/kl_penalized",
        "update/left_out": "update/early_stopped",
        "data/trained_tokens": "data/loss_tokens",
        "eval/longer_accuracy": "eval/length_baseline_accuracy",
    }
)
"""Old name of a metric -> new name."""


def renamed_metric(name: str) -> str | None:
    """Returns the present name of a metric that had the name ``name`` before; None if none had."""
    if majority := re.fullmatch(r"eval/majority_of_(\d+)", name):
        return f"eval/maj_at_{majority[1]}"
    return METRICS.get(name)
