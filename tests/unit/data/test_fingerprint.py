"""Fingerprints of sources: cheap, the same for the same rows, and different for others."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from titanrl.data.fingerprint import NUM_ROWS, compare, fingerprint
from titanrl.protocols import Example, Prompt


class Counted:
    """A generated source of any size that counts the rows it makes."""

    def __init__(self, size: int, offset: int = 0) -> None:
        self.size, self.offset, self.num_read = size, offset, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Prompt:
        self.num_read += 1
        if index == 3:
            raise ValueError("a bad row is reported when a step reaches it")
        return Prompt(f"question {index + self.offset}", columns={"object": object(), "set": {"b", "a", "c"}})


def test_large_source_costs_a_fixed_number_of_rows():
    source = Counted(10**9)
    stored = fingerprint(source)
    assert source.num_read == NUM_ROWS
    assert {"0", str(10**9 - 1)} <= stored["hashes"].keys()
    assert compare(stored, Counted(10**9)) == ""


@pytest.mark.parametrize("size", [1, 2, 7, NUM_ROWS, NUM_ROWS + 1])
def test_changed_sources_are_described(size):
    stored = fingerprint(Counted(size))
    assert compare(stored, Counted(size)) == ""
    assert compare(stored, Counted(size + 2)) == f"it has {size + 2} rows, had {size}"
    changed = min(size, NUM_ROWS) - sum(index == "3" for index in stored["hashes"])
    text = f"{changed} of {min(size, NUM_ROWS)} compared rows differ, the first is row 0"
    assert compare(stored, Counted(size, offset=1)) == text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Prompt("a"), Prompt("a", answer="1")),
        (Prompt("a"), Prompt(({"role": "user", "content": "a"},))),
        (Prompt("a", columns={"x": 1}), Prompt("a", columns={"x": 2})),
        ((Example("a", "b"),), (Example("a", "b", {"reward": 1.0}),)),
        ((Example("a", "b"), Example("a", "c")), (Example("a", "c"), Example("a", "b"))),
    ],
)
def test_every_part_of_a_row_counts(one: Any, other: Any):
    assert compare(fingerprint([one]), [one]) == ""
    assert compare(fingerprint([one]), [other]) == "1 of 1 compared rows differ, the first is row 0"


def test_other_order_is_told_from_other_rows():
    rows = [Prompt(str(number)) for number in range(5)]
    stored = fingerprint(rows)
    assert compare(stored, rows[::-1]) == "4 of 5 compared rows are in another order, the first is row 0"


@pytest.mark.slow
def test_fingerprint_does_not_depend_on_the_process():
    code = (
        "import json; from titanrl.data.fingerprint import fingerprint; "
        "from titanrl.protocols import Prompt; "
        "rows = [Prompt('a', columns={'set': set('abcdefgh'), 'object': object()})]; "
        "print(json.dumps(fingerprint(rows)))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
