"""Experiment trackers: Weights & Biases, and trackio, which has the same interface."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from titanrl.report.alerts import Alert

__all__ = ["Tracker"]


class Tracker:
    """Writer to a tracker; a resumed run continues under its old name.

    For steps that a resumed run repeats, the tracker keeps the values logged first, because it only appends.

    Args:
        name: name of the package.
        folder: folder of the run.
        project: project of the tracker.
        table: the resolved experiment file.
    """

    def __init__(self, name: str, folder: Path, project: str, table: Mapping[str, Any]) -> None:
        self._package: Any = importlib.import_module(name)
        id_file = folder / f"{name}.id"
        if not id_file.exists():
            id_file.write_text(uuid.uuid4().hex[:12])
        # The folder's name alone is not unique: an earlier run of this name may have been removed.
        run_id = id_file.read_text()
        if name == "wandb":
            identity = {"id": run_id, "name": folder.name, "dir": str(folder)}
        else:
            identity = {"name": f"{folder.name}-{run_id}"}
        self._package.init(project=project, config=dict(table), resume="allow", **identity)

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        self._package.log(dict(metrics), step=step)

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Ignore samples: they are in samples.jsonl, and may hold data that must not leave the machine."""

    def alert(self, step: int, alert: Alert) -> None:
        self._package.log({f"alerts/{alert.name}": alert.value}, step=step)

    def close(self) -> None:
        self._package.finish()
