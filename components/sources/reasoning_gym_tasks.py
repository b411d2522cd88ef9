"""What reasoning-gym offers, read without its import, which takes seconds; and its entries as text."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from titanrl.errors import did_you_mean

__all__ = ["check_task", "decode_entry", "encode_entry", "task_options"]

REGISTERED = re.compile(r"register_dataset\(\s*([\w\"']+),\s*\w+,\s*(\w+)")
NOT_OPTIONS = frozenset({"seed", "size"})
"""Settings that the source has keys of its own for."""


def _package() -> Path:
    spec = importlib.util.find_spec("reasoning_gym")
    if spec is None or spec.origin is None:
        raise ValueError("dataset needs the package reasoning-gym, which is not installed; pip install it.")
    return Path(spec.origin).parent


def _registered(path: Path) -> dict[str, tuple[Path, str]]:
    text = path.read_text(encoding="utf-8")
    found = {}
    for argument, config in REGISTERED.findall(text):
        name = argument.strip("\"'")
        if name == argument:
            constant = re.search(rf"^{name}\s*=\s*[\"'](\w+)[\"']", text, re.MULTILINE)
            if constant is None:
                continue
            name = constant[1]
        found[name] = (path, config)
    return found


@cache
def _tasks() -> dict[str, tuple[Path, str]]:
    """Task name -> the file that registers it and its settings class."""
    return {name: task for path in _package().rglob("*.py") for name, task in _registered(path).items()}


@cache
def _task(dataset: str) -> tuple[Path, str] | None:
    # Nearly every task stands in a file of its name: no need to read the whole package.
    if re.fullmatch(r"\w+", dataset):
        for path in _package().rglob(f"{dataset}.py"):
            if dataset in (found := _registered(path)):
                return found[dataset]
    return _tasks().get(dataset)


@cache
def task_options(dataset: str) -> frozenset[str]:
    """Returns the settings that a task takes, `seed` and `size` left out; empty where they can't be read."""
    task = _task(dataset)
    assert task is not None, dataset
    for node in ast.parse(task[0].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == task[1]:
            fields = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
            return frozenset(field.id for field in fields if isinstance(field, ast.Name)) - NOT_OPTIONS
    return frozenset()


def check_task(dataset: str, options: Iterable[str] = ()) -> None:
    """Checks the names of a task and of its settings; their values are the task's to judge, when it is made.

    Raises:
        ValueError: with the nearest known name.
    """
    if _task(dataset) is None:
        raise ValueError(
            f"dataset must be a task of reasoning-gym, got {dataset!r}{did_you_mean(dataset, _tasks())} "
            f"There are {len(_tasks())}, such as 'chain_sum' or 'countdown'."
        )
    known = task_options(dataset)
    for option in options:
        if known and option not in known:
            raise ValueError(
                f"options.{option} is no setting of the task {dataset!r}{did_you_mean(option, known)} "
                f"Settings: {', '.join(sorted(known))}."
            )


def encode_entry(entry: dict[str, Any]) -> str:
    """Returns a task's entry as text: JSON where that keeps it, a Python literal where tuples need one."""
    try:
        text = json.dumps(entry)
        if json.loads(text) == entry:
            return text
    except (TypeError, ValueError):
        pass
    literal = repr(entry)
    try:
        if ast.literal_eval(literal) == entry:
            return literal
    except (ValueError, SyntaxError):
        pass
    # Some objects of a task stand in no scorer's way: their text is enough.
    return json.dumps(entry, default=str, skipkeys=True)


def decode_entry(text: str) -> dict[str, Any]:
    """Returns the entry of `encode_entry`; any other text is taken for the bare reference answer."""
    for read in (json.loads, ast.literal_eval):
        try:
            entry = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(entry, dict) and "answer" in entry:
            return entry
    return {"question": "", "answer": text, "metadata": {}}
