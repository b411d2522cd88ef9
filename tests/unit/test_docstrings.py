"""Docstrings list one parameter per line under ``Args:``, and only parameters that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    path
    for folder in ("titanrl", "components", "tools")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "components" not in path.relative_to(ROOT).parts[1:]  # titanrl/components is a link
]
NAME = r"\*{0,2}[a-z_]\w*"
ENTRY = re.compile(rf"({NAME}(?:, {NAME})*): +\S")

Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def parameters(node: Documented) -> set[str]:
    """Return the parameters of a function, or the fields and constructor parameters of a class."""
    if isinstance(node, ast.ClassDef):
        fields = {
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
        methods = [
            each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"
        ]
        return fields.union(*(parameters(each) for each in methods))
    args = node.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    return {each.arg for each in every if each is not None}


def entries(docstring: str) -> list[str]:
    """Return the entries under ``Args:``, each with its continuation lines."""
    lines = docstring.splitlines()
    start = next((i for i, line in enumerate(lines) if line.strip() == "Args:"), len(lines))
    margin = len(lines[start]) - len(lines[start].lstrip()) if start < len(lines) else 0
    found: list[str] = []
    indent = 0
    for line in lines[start + 1 :]:
        depth = len(line) - len(line.lstrip())
        if not line.strip():
            continue
        if depth <= margin:
            break
        indent = indent or depth
        if depth > indent and found:
            found[-1] += " " + line.strip()
        else:
            found.append(line.strip())
    return found


def problems(source: str) -> Iterator[str]:
    """Yield what is wrong with the ``Args:`` sections of a file, with line numbers."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, Documented):
            continue
        docstring = ast.get_docstring(node) or ""
        where = f"{node.name}, line {node.lineno}:"
        if docstring.startswith("Args:"):
            yield f"{where} the first line must say what it is or does, not Args:"
        known = parameters(node)
        for entry in entries(docstring):
            match = ENTRY.match(entry)
            if not match:
                yield f"{where} an entry must be `name: text`, got {entry[:60]!r}"
                continue
            names = [name.lstrip("*") for name in match[1].split(", ")]
            yield from (f"{where} has no parameter {name!r}" for name in names if name not in known)
            text = entry[match.end(1) + 1 :]
            for name in re.findall(rf"(?<![\w`.\"']){NAME}(?=: )", text):
                if name.lstrip("*") in known:
                    yield f"{where} {name!r} needs a line of its own"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_args_have_one_existing_parameter_per_line(path: Path) -> None:
    assert list(problems(path.read_text())) == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a: first.", "b: second,", "    on two lines."], None),
        (["a, b: both."], None),
        (["a: first. b: second."], "'b' needs a line of its own"),
        (["a: first,", "    and more. b: second."], "'b' needs a line of its own"),
        (["c: unknown."], "has no parameter 'c'"),
        (["The first."], "an entry must be `name: text`"),
    ],
)
def test_problems_of_an_args_section_are_found(lines: list[str], message: str | None) -> None:
    body = "\n".join(f"        {line}" for line in lines)
    source = (
        f'def f(a, b):\n    """Do it.\n\n    Args:\n{body}\n\n    Returns:\n        c: no entry.\n    """\n'
    )
    found = list(problems(source))
    assert len(found) == (message is not None)
    assert message is None or message in found[0]
