"""The reward code_tests: what passes, what cheats, and what is left behind."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import titanrl

TESTS = json.dumps({"tests": ["assert add(2, 2) == 4", "assert add(-1, 1) == 0"]})
CASES = json.dumps({"cases": [{"stdin": "2 3\n", "stdout": "5\n"}, {"stdin": "4 4", "stdout": "8"}]})
RIGHT = "def add(a, b):\n    return a + b\n"
HALF = "def add(a, b):\n    return 4\n"


def score(programs: list[str], answer: str = TESTS, **keys: Any) -> list[float]:
    text = {"response": programs, "answer": [answer] * len(programs)}
    mask = torch.ones(len(programs), 1, dtype=torch.bool)
    batch = TensorDict({"loss_mask": mask, "text": text}, batch_size=[len(programs)])
    values: list[float] = titanrl.build("reward", {"name": "code_tests", **keys})(batch).tolist()
    return values


def test_fraction_of_passed_tests_is_the_score() -> None:
    fenced = f"First\n```python\nno\n```\nbetter:\n```python\n{RIGHT}```\nDone."
    assert score([RIGHT, HALF, "def add(", fenced, ""]) == [1.0, 0.5, 0.0, 1.0, 0.0]


def test_all_or_nothing_without_partial() -> None:
    assert score([RIGHT, HALF], partial=False) == [1.0, 0.0]


def test_output_of_cases_is_compared_line_by_line() -> None:
    right = "a, b = map(int, input().split())\nprint(a + b)"
    script = f"if __name__ == '__main__':\n    {right.splitlines()[0]}\n    print(a + b, '')\n    print()"
    assert score([right, script, "print(5)", "print(5); print(6)"], CASES) == [1.0, 1.0, 0.5, 0.0]


def test_cheating_and_runaway_programs_score_zero_and_later_ones_are_scored() -> None:
    """Endless loops, sleeping forks, early exits, printed verdicts, 2 GB, and then a right program."""
    bad = [
        "while True: pass",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\ntime.sleep(60)",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "print('passed'); raise SystemExit(0)",
        "x = bytearray(2 << 30)\n" + RIGHT,
        "raise BaseException('no')",
    ]
    start = time.monotonic()
    assert score([*bad, RIGHT], timeout_seconds=3.0) == [0.0] * len(bad) + [1.0]
    assert time.monotonic() - start < 60


def test_no_process_of_a_program_survives(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    program = (
        "import os, subprocess, sys, time\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "p = subprocess.Popen(sleep, start_new_session=True)\n"
        f"open({str(note)!r}, 'w').write(str(p.pid))\n" + RIGHT
    )
    score([program])
    if note.exists():  # where a program may not start others, there is nothing to look for
        assert not Path(f"/proc/{note.read_text()}").exists()


@pytest.mark.parametrize("answer", ["4", "{}", '{"tests": []}', "not JSON"])
def test_code_tests_without_tests_is_a_failure(answer: str) -> None:
    assert score([RIGHT], answer, failure_score=-0.5) == [-0.5]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"timeout_seconds": 0.0}, "timeout_seconds must be in"),
        ({"memory_mb": 8}, "memory_mb must be in [64, inf), got 8"),
        ({"language": "rust"}, "language"),
    ],
)
def test_wrong_table_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(titanrl.ConfigError) as error:
        titanrl.build("reward", {"name": "code_tests", **keys})
    assert message in str(error.value)
