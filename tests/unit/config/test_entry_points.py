"""Installed packages bring components through the entry-point group titanrl.components."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

COMPONENT = """
from dataclasses import dataclass
from typing import ClassVar

from titanrl import register

@register("loss", "packaged_loss")
@dataclass(frozen=True, slots=True, kw_only=True)
class Packaged:
    '''Returns what the package says.'''
    in_keys: ClassVar = ("advantage",)
"""


def package(folder: Path, source: str) -> None:
    """Lays a package named titan-extras into ``folder`` as pip would."""
    (folder / "titan_extras.py").write_text(source)
    info = folder / "titan_extras-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: titan-extras\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[titanrl.components]\nextras = titan_extras\n")


def components(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(Path.cwd())])}
    command = [sys.executable, "-m", "titanrl", "components", "loss"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_component_of_an_installed_package_is_registered(tmp_path: Path) -> None:
    package(tmp_path, COMPONENT)
    result = components(tmp_path)
    assert result.returncode == 0, result.stderr
    assert "packaged_loss" in result.stdout
    assert "ppo_clip" in result.stdout


def test_failing_entry_point_is_named(tmp_path: Path) -> None:
    package(tmp_path, "raise RuntimeError('out of order')")
    result = components(tmp_path)
    assert result.returncode == 2
    assert "entry point 'extras' (titan_extras) failed with RuntimeError: out of order" in result.stderr
    assert "Traceback" not in result.stderr
