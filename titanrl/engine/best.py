"""The record of a run's best checkpoint by a validation metric: ``best.json`` beside the checkpoints."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Literal, NamedTuple

from titanrl.engine.manifest import write_durably
from titanrl.errors import ConfigError

__all__ = ["Best", "read", "write"]

FILE = "best.json"


class Best(NamedTuple):
    """A checkpoint and the value that made it the best."""

    step: int
    metric: str
    """Name of the validation metric."""
    mode: Literal["max", "min"]
    """Whether larger values are better, or smaller ones."""
    value: float

    def is_beaten_by(self, value: float) -> bool:
        """Whether ``value`` is better; equal values and NaN are not."""
        return value > self.value if self.mode == "max" else value < self.value


def read(folder: Path) -> Best | None:
    """Returns the record in a run's folder of checkpoints; None: there is none.

    Raises:
        ConfigError: the file is damaged.
    """
    path = folder / FILE
    try:
        table = json.loads(path.read_text(encoding="ascii"))
        record = Best(int(table["step"]), str(table["metric"]), table["mode"], float(table["value"]))
        if record.mode not in ("max", "min") or not math.isfinite(record.value):
            raise ValueError("its values are out of range")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is damaged: {error}; remove it. The best checkpoint is then recorded again, and a "
            "checkpoint can be chosen by its number."
        ) from None
    return record


def write(folder: Path, record: Best) -> None:
    """Writes the record, durably.

    Raises:
        OSError: the disk is full, for instance.
    """
    write_durably(folder / FILE, json.dumps(record._asdict()) + "\n")
