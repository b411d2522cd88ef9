"""The documentation builds as a site, strictly, and its generated pages say what the sources say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mkdocs.config import load_config
from typer.testing import CliRunner

from titanrl.cli import app
from titanrl.config import Experiment
from titanrl.registry.decode import fields_of
from tools.cli_page import cli_page, dataflow_svg
from tools.config_page import config_page

ROOT = Path(__file__).parents[2]
STALE = "is not what the sources say; run `make docs`"


@pytest.mark.parametrize(
    ("name", "made"), [("config.md", config_page), ("cli.md", cli_page), ("dataflow.svg", dataflow_svg)]
)
def test_generated_pages_are_up_to_date(name: str, made: object) -> None:
    assert callable(made)
    assert (ROOT / "docs" / name).read_text("utf-8") == made(), f"docs/{name} {STALE}"


def test_every_table_and_command_is_on_its_page() -> None:
    tables = config_page()
    for key in fields_of(Experiment):  # type: ignore[arg-type]
        assert key == "imports" or f"## `[{key}]`" in tables or f"## `[[{key}]]`" in tables
    help_of_all = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    for command in ("train", "watch", "model get"):
        assert command.split()[0] in help_of_all
        assert f"## `titanrl {command}`" in cli_page()


def test_every_page_is_in_the_menu() -> None:
    nav = str(load_config(str(ROOT / "mkdocs.yml")).nav)
    for page in (ROOT / "docs").glob("*.md"):
        assert f"'{page.name}'" in nav, f"mkdocs.yml: add {page.name} to nav"


@pytest.mark.slow
def test_site_builds_and_every_link_resolves(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site" / "concepts.html").read_text()
    assert 'src="dataflow.svg"' in page
