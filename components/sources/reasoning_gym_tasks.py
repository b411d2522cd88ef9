"""Names and settings of reasoning-gym's tasks, and the text form of their entries.

The package's source is parsed instead of imported, because its import takes seconds.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from titanrl.errors import did_you_mean
from titanrl.registry.ranges import MAX_FLOAT, MAX_INT

__all__ = ["check_task", "decode_entry", "encode_entry", "task_options"]

REGISTERED = re.compile(r"register_dataset\(\s*([\w\"']+),\s*\w+,\s*(\w+)")
TYPES: Mapping[str, tuple[str, type | tuple[type, ...]]] = MappingProxyType(
    {
        "bool": ("true or false", bool),
        "float": ("a number", (int, float)),
        "int": ("an integer", int),
        "list": ("an array", list),
        "str": ("a string", str),
    }
)
"""Declared type of a setting -> what its value must be, in words and as types."""
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
def _option_types(dataset: str) -> Mapping[str, str]:
    """Returns setting -> its declared type, as text; empty if the settings cannot be read."""
    task = _task(dataset)
    assert task is not None, dataset
    for node in ast.parse(task[0].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == task[1]:
            fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
            types = {each.target.id: each.annotation for each in fields if isinstance(each.target, ast.Name)}
            return {name: ast.unparse(hint) for name, hint in types.items() if name not in NOT_OPTIONS}
    return {}


def task_options(dataset: str) -> frozenset[str]:
    """Returns the settings of a task without `seed` and `size`; empty if they cannot be read."""
    return frozenset(_option_types(dataset))


def check_task(dataset: str, options: Mapping[str, object] = MappingProxyType({})) -> None:
    """Checks the names of a task and of its settings, and the types and sizes of their values; the task
    itself checks the ranges of the values when it is created.

    Args:
        dataset: name of the task.
        options: setting -> value.

    Raises:
        ValueError: an unknown name; the message has the closest known one. Or a value of another type than
            the task declares, or of an absurd size.
    """
    if _task(dataset) is None:
        raise ValueError(
            f"dataset must be a task of reasoning-gym, got {dataset!r}{did_you_mean(dataset, _tasks())} "
            f"There are {len(_tasks())}, such as 'chain_sum' or 'countdown'."
        )
    known = _option_types(dataset)
    for option, value in options.items():
        if known and option not in known:
            raise ValueError(
                f"options.{option} is not a setting of the task {dataset!r}{did_you_mean(option, known)} "
                f"Settings: {', '.join(sorted(known))}."
            )
        if fault := _option_fault(known.get(option, ""), value):
            raise ValueError(f"options.{option} {fault}, got {value!r:.80}.")


def _option_fault(declared: str, value: object) -> str:
    """Returns what is wrong with the value of a setting, or an empty string.

    Args:
        declared: type of the setting, as text; the value of one that is not a plain type can have any type.
        value: the value.
    """
    numbers = value if isinstance(value, list) else [value]
    for each in numbers:
        if isinstance(each, float) and not abs(each) <= MAX_FLOAT:
            return f"must be finite and of a size up to {MAX_FLOAT}"
        if isinstance(each, int) and abs(each) > MAX_INT:
            return f"must be of a size up to {MAX_INT}"
    plain = re.sub(r"^Optional\[(.*)\]$", r"\1", declared)
    text, types = TYPES.get(plain.partition("[")[0], ("", object))
    is_bool_as_number = isinstance(value, bool) and plain in ("int", "float")
    return "" if isinstance(value, types) and not is_bool_as_number else f"must be {text}"


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
