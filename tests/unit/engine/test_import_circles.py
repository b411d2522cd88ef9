"""Modules of the engine and the models import each other in no circle, imports for types included."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = ("engine", "models", "ops")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, modules: set[str]) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= members if members & modules else {str(node.module)}
    return names & modules - {module_name(path)}


def test_engine_models_and_ops_have_no_import_circle() -> None:
    paths = [path for package in PACKAGES for path in (ROOT / "titanrl" / package).rglob("*.py")]
    modules = {module_name(path) for path in paths}
    graph = {module_name(path): imported(path, modules) for path in paths}
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise AssertionError(f"import circle: {' -> '.join(error.args[1])}") from None
    assert len(order) == len(modules)


def test_engine_models_and_ops_import_nothing_above_them() -> None:
    above = ("data", "rollout", "training", "eval", "serve", "recipes", "ablation", "cli")
    actual = []
    for package in PACKAGES:
        for path in (ROOT / "titanrl" / package).rglob("*.py"):
            text = path.read_text()
            actual += [f"{path}: {name}" for name in above if f"titanrl.{name}" in text]
    assert actual == []
