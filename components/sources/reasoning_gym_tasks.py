"""Names and settings of reasoning-gym's tasks, and the text form of their entries.

The package's source is parsed instead of imported, because its import takes seconds.
"""

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
"""Settings for which the source has its own keys."""


def _package() -> Path:
    spec = importlib.util.find_spec("reasoning_gym")
    if spec is None or spec.origin is None:
        raise ValueError("dataset needs the package reasoning-gym, which is not installed; pip install it.")
    return Path(spec.origin).parent


def _registered(path: Path) -> dict[str, tuple[Path, str]]:
    text = path.read_text(encoding="utf-8")
    tasks = {}
    for argument, config in REGISTERED.findall(text):
        name = argument.strip("\"'")
        if name == argument:
            constant = re.search(rf"^{name}\s*=\s*[\"'](\w+)[\"']", text, re.MULTILINE)
            if constant is None:
                continue
            name = constant[1]
        tasks[name] = (path, config)
    return tasks


@cache
def _tasks() -> dict[str, tuple[Path, str]]:
    """Returns task name -> (file that registers it, name of its settings class)."""
    return {name: task for path in _package().rglob("*.py") for name, task in _registered(path).items()}


@cache
def _task(dataset: str) -> tuple[Path, str] | None:
    # Nearly every task has a file of its name, so the whole package is rarely read.
    if re.fullmatch(r"\w{1,100}", dataset):
        for path in _package().rglob(f"{dataset}.py"):
            if dataset in (tasks := _registered(path)):
                return tasks[dataset]
    return _tasks().get(dataset)


@cache
def task_options(dataset: str) -> frozenset[str]:
    """Returns the settings of a task without `seed` and `size`; empty if they cannot be read."""
    task = _task(dataset)
    assert task is not None, dataset
    for node in ast.parse(task[0].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == task[1]:
            fields = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
            return frozenset(field.id for field in fields if isinstance(field, ast.Name)) - NOT_OPTIONS
    return frozenset()


def check_task(dataset: str, options: Iterable[str] = ()) -> None:
    """Checks the names of a task and of its settings; the task itself checks their values when it is
    created.

    Raises:
        ValueError: an unknown name; the message has the closest known one.
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
                f"options.{option} is not a setting of the task {dataset!r}{did_you_mean(option, known)} "
                f"Settings: {', '.join(sorted(known))}."
            )


def encode_entry(entry: dict[str, Any]) -> str:
    """Returns a task's entry as text: JSON if that is lossless, a Python literal if it contains tuples."""
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
    # The remaining objects of a task are not used by its verifier: their text is enough.
    return json.dumps(entry, default=str, skipkeys=True)


def decode_entry(text: str) -> dict[str, Any]:
    """Returns the entry that `encode_entry` wrote; any other text is a plain reference answer."""
    for parse in (json.loads, ast.literal_eval):
        try:
            entry = parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(entry, dict) and "answer" in entry:
            return entry
    return {"question": "", "answer": text, "metadata": {}}
