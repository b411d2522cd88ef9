"""Test coverage of each component: the golden cases of its name and the laws of its kind."""

from __future__ import annotations

import ast
import json
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from titanrl.registry import FOLDERS, component_class, kinds, names

__all__ = ["Status", "built_in", "laws_of", "status_of", "survey"]

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Status:
    """Test coverage of one component."""

    values: int = 0
    """Number of golden cases whose values it must reproduce."""
    refusals: int = 0
    """Number of golden cases with tables that it must refuse."""
    laws: tuple[str, ...] = ()
    """Test files that cover every registered component of the kind."""

    @property
    def golden(self) -> str:
        """The golden cases as text."""
        counts = [(self.values, "value"), (self.refusals, "refused table")]
        return " and ".join(f"{n} {word}{'s' * (n > 1)}" for n, word in counts if n) or "none"


def laws_of(kind: str) -> tuple[str, ...]:
    """Return the test files that cover every registered component of a kind."""
    return tuple(_coverage()["laws"][kind])


def status_of(kind: str, name: str) -> Status:
    """Return the status of a built-in component; an empty one for a plug-in."""
    counts = _coverage()["golden"].get(kind, {}).get(name)
    if counts is None:
        return Status()
    return Status(values=counts[0], refusals=counts[1], laws=laws_of(kind))


def built_in(kind: str) -> list[str]:
    """Return the names that titanrl itself registers."""
    inside = f"titanrl.components.{FOLDERS[kind]}."
    return [name for name in names(kind) if component_class(kind, name).__module__.startswith(inside)]


def survey(root: Path, names: dict[str, list[str]]) -> dict[str, Any]:
    """Return the test coverage in a clone.

    Args:
        root: folder that holds ``tests``.
        names: kind -> its built-in components.
    """
    golden = {kind: {name: [0, 0] for name in each} for kind, each in names.items()}
    for kind, counts in golden.items():
        file = root / "tests" / "golden" / f"{kind}.json"
        cases = json.loads(file.read_text("utf-8")) if file.exists() else []
        num_cases = Counter((case["table"].get("name"), "error" in case["expect"]) for case in cases)
        for name in counts:
            counts[name] = [num_cases[name, False], num_cases[name, True]]
    laws: dict[str, list[str]] = {kind: [] for kind in kinds()}
    for file in sorted([*root.glob("tests/laws/test_*.py"), *root.glob("tests/unit/*/test_*.py")]):
        for kind in _kinds_covered(file, root):
            laws[kind].append(file.relative_to(root).as_posix())
    return {"golden": golden, "laws": laws}


def _kinds_covered(file: Path, root: Path) -> set[str]:
    """Return the kinds for which the tests of a file are parametrized over all names.

    These are the kinds for which, outside the bodies of tests, the file calls ``names("kind")`` or
    ``tables("kind")``, or the module from which it imports ``tables`` does.
    """
    tree = ast.parse(file.read_text("utf-8"))
    for part in tree.body:
        if isinstance(part, ast.FunctionDef) and part.name.startswith("test_"):
            part.body = []
    modules = [tree]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(each.name == "tables" for each in node.names):
            path = root / f"{str(node.module).replace('.', '/')}.py"
            if path.exists():
                modules.append(ast.parse(path.read_text("utf-8")))
    return {kind for module in modules for node in ast.walk(module) for kind in _enumerated(node)}


def _enumerated(node: ast.AST) -> set[str]:
    match node:
        case ast.Call(func=ast.Attribute(attr="names") | ast.Name(id="names" | "tables"), args=[argument]):
            return {str(argument.value)} & set(kinds()) if isinstance(argument, ast.Constant) else set()
    return set()


@cache
def _coverage() -> dict[str, Any]:
    return survey(ROOT, {kind: built_in(kind) for kind in kinds()})
