"""experiments/README.md lists every file that is there, and none that isn't."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "experiments"
PRESETS = ("algorithms", "compat")
"""Folders of presets, listed as a whole: a test writes docs/algorithms.md and docs/compat.md about them."""


def test_every_experiment_is_listed_with_its_purpose() -> None:
    rows = re.findall(r"^\| \[[^\]]+\]\(([^)]+)\) \| (.+) \|$", (FOLDER / "README.md").read_text(), re.M)
    listed = {path: cells.split(" | ") for path, cells in rows}
    files = {
        str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.toml") if path.parent.name not in PRESETS
    }
    assert {path for path in listed if path.endswith(".toml")} == files
    assert all(cell.strip() for path in files for cell in listed[path]), "no cell is empty"
