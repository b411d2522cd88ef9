"""The names that docs/metrics.md explains."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["documented_metrics"]

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"


def documented_metrics(*labels: str) -> set[str]:
    """Returns the names of docs/metrics.md, its label standing for the rewards of a run too."""
    documented = set()
    for row in re.findall(r"^\| (`[^|]*`)", PAGE.read_text(), flags=re.MULTILINE):
        names = re.findall(r"`([^`]+)`", row)
        stems = [name for name in names if "/" in name]
        documented.update(stems)
        documented.update(stems[0].rpartition("_mean")[0] + name for name in names if name.startswith("_"))
    return documented | {name.replace("<label>", label) for name in documented for label in labels}
