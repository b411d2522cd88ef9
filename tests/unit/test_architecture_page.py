"""docs/architecture.md and its plot match the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.test_architecture import LAYERS
from tools.architecture_plot import COLUMNS, FILE, direct, imports_of_packages

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_page_lists_the_packages_in_the_order_of_the_layers() -> None:
    packages = re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)
    assert tuple(packages) == LAYERS


def test_every_file_and_folder_on_the_page_exists() -> None:
    paths = re.findall(r"`([\w./]+/[\w./]*)`", PAGE)
    assert len(paths) > 25
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_plot_shows_the_imports_of_the_code() -> None:
    arrows = {
        f"{package}-{target}" for package, each in direct(imports_of_packages()).items() for target in each
    }
    drawn = set(re.findall(r'<g id="(\w+-\w+)">', FILE.read_text()))
    assert drawn == arrows, "run python -m tools.architecture_plot"
    assert set(COLUMNS) == {*LAYERS, "components"}


def test_direct_imports_leave_out_those_that_follow() -> None:
    imports = {"a": {"b", "c"}, "b": {"c"}, "c": set[str]()}
    assert direct(imports) == {"a": {"b"}, "b": {"c"}, "c": set()}
