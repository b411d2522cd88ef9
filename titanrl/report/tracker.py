"""Experiment trackers: Weights & Biases, and trackio, which has the same calls."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from titanrl.report.alerts import Alert

__all__ = ["Tracker"]


class Tracker:
    """A run of a tracker; a resumed run goes on under its old name.

    Steps that a resumed run makes again stay as they were first told: trackers only append.

    Args:
        name: of the package. folder: of the run. project: of the tracker. table: the resolved file.
    """

    def __init__(self, name: str, folder: Path, project: str, table: Mapping[str, Any]) -> None:
        self._package: Any = importlib.import_module(name)
        known = folder / f"{name}.id"
        if not known.exists():
            known.write_text(uuid.uuid4().hex[:12])
        # A folder's name may have been used before, for a run that was removed since.
        mark = known.read_text()
        own = {"id": mark, "name": folder.name, "dir": str(folder)} if name == "wandb" else {
            "name": f"{folder.name}-{mark}"
        }  # fmt: skip
        self._package.init(project=project, config=dict(table), resume="allow", **own)

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        self._package.log(dict(metrics), step=step)

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keeps the samples out: they are in samples.jsonl, and may hold what shall not leave the machine."""

    def alert(self, step: int, alert: Alert) -> None:
        self._package.log({f"alerts/{alert.name}": alert.value}, step=step)

    def close(self) -> None:
        self._package.finish()
