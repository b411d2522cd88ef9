"""One wrong character in a key or name of the shipped files: always refused, and the right word offered."""

from __future__ import annotations

import copy
import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.config.test_tables import TABLES
from titanrl.config.experiment import Experiment
from titanrl.config.load import DIRECTIVES, load, read
from titanrl.errors import ConfigError
from titanrl.registry import component_class, kinds, names
from titanrl.registry.decode import build, fields_of

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
WHOLE = sorted(
    path
    for path in EXPERIMENTS.rglob("*.toml")
    if not {"algorithms", "compat", "ablations", "recipes"} & set(path.relative_to(EXPERIMENTS).parts)
)
"""The files that can be run; presets are parts of them."""

Place = tuple[str | int, ...]

FREE = ("by_prompt",)
"""Tables whose keys are the user's."""

MUTATIONS = 12
"""Slips tried for each word, of some hundred possible ones; which ones follows from the word."""


def slips(word: str) -> list[str]:
    """Returns every word one deletion, swap, replacement or insertion away, as keys allow."""
    letters = string.ascii_lowercase + string.digits + "_"
    spots = range(len(word))
    found = {word[:i] + word[i + 1 :] for i in spots}
    found |= {word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in spots[:-1]}
    found |= {word[:i] + letter + word[i + 1 :] for i in spots for letter in letters}
    found |= {word[:i] + letter + word[i:] for i in range(len(word) + 1) for letter in letters}
    return sorted(found - {word, ""})


def some_slips(word: str) -> list[str]:
    return random.Random(word).sample(every := slips(word), min(MUTATIONS, len(every)))


def walk(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yields the place of every key below ``value``."""
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, held in entries:
        if isinstance(key, str):
            yield (*place, key)
        if key not in FREE:
            yield from walk(held, (*place, key))


def at(table: Any, place: Place) -> Any:
    for part in place:
        table = table[part]
    return table


def refusal(table: dict[str, Any]) -> str:
    try:
        Experiment.from_table(table, DIRECTIVES)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_shipped_file_is_valid(path: Path) -> None:
    load(path)


@pytest.mark.slow
@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_typo_in_any_key_is_refused_with_a_suggestion(path: Path) -> None:
    table = read(path).table
    known = every_key()
    for place in walk(table):
        *parents, key = place
        for slip in some_slips(str(key)):
            if slip in known:
                continue
            wrong = copy.deepcopy(table)
            holder = at(wrong, tuple(parents))
            holder[slip] = holder.pop(key)
            report = refusal(wrong)
            assert repr(key) in report, f"{place} written {slip}: {report or 'accepted'}"
            assert slip in report


@pytest.mark.parametrize("kind", kinds())
def test_typo_in_any_registered_name_is_refused_with_a_suggestion(kind: str) -> None:
    for name in names(kind):
        for slip in some_slips(name):
            if slip in names(kind):
                continue
            with pytest.raises(ConfigError) as caught:
                build(kind, {"name": slip})
            offered = str(caught.value).partition("did you mean ")[2].partition("?")[0]
            assert repr(name) in offered, slip


@pytest.mark.slow
@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_typo_in_a_name_of_a_shipped_file_is_refused_with_its_key(path: Path) -> None:
    table = read(path).table
    for place in walk(table):
        if place[-1] != "name" or place[0] in ("run", "optimizer"):
            continue
        name = at(table, place)
        for slip in some_slips(name)[:3]:
            if any(slip in names(kind) for kind in kinds()):
                continue
            wrong = copy.deepcopy(table)
            at(wrong, place[:-1])["name"] = slip
            report = refusal(wrong)
            assert f"[{'.'.join(map(str, place[:-1]))}] name is no registered" in report
            assert repr(name) in report.partition("did you mean")[2]


def every_key() -> set[str]:
    """Returns every key of every table: a slip from one right key to another is no misspelling."""
    components = [component_class(kind, name) for kind in kinds() for name in names(kind)]
    return {key for cls in (*TABLES, *components) for key in fields_of(cls)} | {*DIRECTIVES, "name"}
