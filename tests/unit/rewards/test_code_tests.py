"""The reward code_tests: what passes, what cheats, and what is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import titanrl
from tests.unit.rewards.hostile_programs import LIARS
from titanrl.components.rewards.code_tests import reward as reward_module
from titanrl.runtime import bubblewrap
from titanrl.runtime.sandbox import missing_for_strict

ISOLATIONS = [
    pytest.param(
        "strict",
        marks=pytest.mark.skipif(bool(missing_for_strict()), reason=f"strict {missing_for_strict()}"),
    ),
    "process",
]
ROOT = Path(__file__).parents[3]
every = pytest.mark.parametrize("isolation", ISOLATIONS)
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:code_tests:RuntimeWarning")]

TESTS = json.dumps({"tests": ["assert add(2, 2) == 4", "assert add(-1, 1) == 0"]})
CASES = json.dumps({"cases": [{"stdin": "2 3\n", "stdout": "5\n"}, {"stdin": "4 4", "stdout": "8"}]})
RIGHT = "def add(a, b):\n    return a + b\n"
HALF = "def add(a, b):\n    return 4\n"


def rows(programs: list[str], answer: str | list[str] = TESTS) -> TensorDict:
    answers = [answer] * len(programs) if isinstance(answer, str) else answer
    text = {"response": programs, "answer": answers}
    mask = torch.ones(len(programs), 1, dtype=torch.bool)
    return TensorDict({"loss_mask": mask, "text": text}, batch_size=[len(programs)])


def score(programs: list[str], isolation: str, answer: str = TESTS, **keys: Any) -> list[float]:
    reward = titanrl.build("reward", {"name": "code_tests", "isolation": isolation, **keys})
    values: list[float] = reward(rows(programs, answer)).tolist()
    return values


@every
def test_fraction_of_passed_tests_is_the_score(isolation: str) -> None:
    fenced = f"First\n```python\nno\n```\nbetter:\n```python\n{RIGHT}```\nDone."
    assert score([RIGHT, HALF, "def add(", fenced, ""], isolation) == [1.0, 0.5, 0.0, 1.0, 0.0]


@every
def test_all_or_nothing_without_partial(isolation: str) -> None:
    assert score([RIGHT, HALF], isolation, partial=False) == [1.0, 0.0]
    assert score(["print(5)", "print(sum(map(int, input().split())))"], isolation, CASES, partial=False) == [
        0,
        1,
    ]


@every
def test_output_of_cases_is_compared_line_by_line(isolation: str) -> None:
    right = "a, b = map(int, input().split())\nprint(a + b)"
    script = f"if __name__ == '__main__':\n    {right.splitlines()[0]}\n    print(a + b, '')\n    print()"
    programs = [right, script, "print(5)", "print(5); print(6)"]
    assert score(programs, isolation, CASES) == [1.0, 1.0, 0.5, 0.0]


@every
def test_cheating_and_runaway_programs_score_zero_and_later_ones_are_scored(isolation: str) -> None:
    """Endless loops, sleeping forks, early exits, printed verdicts, 2 GB, and then a right program."""
    bad = [
        "while True: pass",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\ntime.sleep(60)",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "print('passed'); raise SystemExit(0)",
        "x = bytearray(2 << 30)\n" + RIGHT,
        "raise BaseException('no')",
        "class E:\n    def __eq__(self, other): return True\nadd = lambda a, b: E()",
    ]
    start = time.monotonic()
    assert score([*bad, RIGHT], isolation, timeout_seconds=3.0) == [0.0] * len(bad) + [1.0]
    assert time.monotonic() - start < 60


def test_a_test_that_stops_one_process_does_not_stop_the_next() -> None:
    program = "import os\ndef add(a, b):\n    if a == 2: os._exit(1)\n    return a + b"
    assert score([program], "process") == [0.5]


def test_no_process_of_a_program_survives_without_a_namespace(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    note = tmp_path / "pid"
    program = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        f"        open({str(note)!r}, 'w').write(str(os.getpid()))\n        time.sleep(60)\n    os._exit(0)\n"
        f"while not os.path.exists({str(note)!r}): time.sleep(0.01)\n" + RIGHT
    )
    for folder in tmp_path.parents:
        if folder.stat().st_uid == os.geteuid() and "pytest" in folder.name:
            folder.chmod(0o755)
    score([program], "process")
    assert not Path(f"/proc/{note.read_text()}").exists()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("4", "needs a reference answer with tests or cases"),
        ("{}", "needs a reference answer with tests or cases"),
        ('{"tests": []}', "needs a reference answer with tests or cases"),
        ('{"tests": [1]}', "needs tests that are strings"),
        ('{"cases": [{"stdin": ""}]}', "needs cases with stdin and stdout"),
        ("not JSON", "JSONDecodeError"),
        ('{"tests": ["assert sum([1]) == 1"]}', "calls no function of the program"),
        ('{"tests": ["assert add(object(), 1) == 1"]}', "passes a value of type object"),
        ('{"tests": ["import no_such_module\\nassert add(1, 1) == 2"]}', "needs a module that is missing"),
    ],
)
def test_tests_that_cannot_be_evaluated_are_a_failure_with_the_reason(answer: str, reason: str) -> None:
    reward = titanrl.build("reward", {"name": "code_tests", "isolation": "process", "failure_score": -0.5})
    assert reward(rows([RIGHT], answer)).tolist() == [-0.5]
    assert reason in reward.scores(rows([RIGHT], answer))[0]


def test_objects_of_a_program_cannot_pass_statements() -> None:
    reward = titanrl.build("reward", {"name": "code_tests", "isolation": "process", "timeout_seconds": 5.0})
    programs = [program for program, _ in LIARS.values()]
    batch = rows(programs, [json.dumps({"tests": tests}) for _, tests in LIARS.values()])
    assert dict(zip(LIARS, reward.scores(batch), strict=True)) == dict.fromkeys(LIARS, 0.0)


def test_a_program_cannot_turn_a_failed_test_into_a_failure_of_the_row() -> None:
    tests = ["import math\nx = add(1, 1)\nassert add(x.keys(), 1) == 3", "assert add(map, [1]) == 2"]
    programs = [
        "def add(a, b): raise ImportError('no module')",
        "add = lambda a, b: {}",
        "def add(a, b): return a(len, b)",
    ]
    reward = titanrl.build("reward", {"name": "code_tests", "isolation": "process", "failure_score": 1.0})
    assert reward(rows(programs, json.dumps({"tests": tests}))).tolist() == [0.0] * 3


def test_a_program_that_ends_does_not_pass_a_test_that_expects_an_error() -> None:
    answer = json.dumps({"tests": ["try:\n    add(1, 1)\nexcept BaseException:\n    pass"]})
    programs = ["import os\ndef add(a, b): os._exit(0)", "def add(a, b): raise ValueError"]
    assert score(programs, "process", answer) == [0.0, 1.0]


def test_an_empty_result_is_not_close_to_a_number() -> None:
    answer = json.dumps({"tests": ["assert np.allclose(add(1, 1), 2.0)"]})
    assert score(["add = lambda a, b: []", "add = lambda a, b: [2.0]"], "process", answer) == [0.0, 1.0]


LEAVES = """
import json, sys
import torch
from tensordict import TensorDict
import titanrl
text = {"response": ["import time; time.sleep(60)", "x = 1"], "answer": [sys.argv[2]] * 2}
batch = TensorDict({"loss_mask": torch.ones(2, 1, dtype=torch.bool), "text": text}, batch_size=[2])
keys = {"isolation": sys.argv[1], "timeout_seconds": 0.5}
assert titanrl.build("reward", {"name": "code_tests", **keys})(batch).tolist() == [0.0, 0.0]
"""


@pytest.mark.slow
@every
def test_nothing_is_left_when_the_trainer_ends(isolation: str, tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    trainer = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", LEAVES, isolation, TESTS], env=environment, cwd=tmp_path
    )
    assert trainer.wait(120) == 0
    assert list(tmp_path.iterdir()) == []
    groups = [group for group in Path("/sys/fs/cgroup").glob("**/titanrl-*") if group.is_dir()]
    assert [group for group in groups if not Path(f"/proc/{group.name.split('-')[1]}").exists()] == []


@pytest.fixture
def not_yet_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_module, "_warned", set())


@pytest.mark.usefixtures("not_yet_warned")
def test_weak_tests_are_counted_and_said_once() -> None:
    answer = json.dumps({"tests": ["assert add(add(1, 1), 1) == 3", "assert add(1, 1) == 2"]})
    with pytest.warns(RuntimeWarning) as records:
        scores = [score([RIGHT] * count, "process", answer) for count in (2, 1)]
    assert scores == [[1.0, 1.0], [1.0]]
    messages = [str(record.message) for record in records if "tests of this batch" in str(record.message)]
    assert len(messages) == 1
    assert "2 of the 4 tests" in messages[0]


@pytest.mark.usefixtures("not_yet_warned")
def test_missing_protection_is_said_once() -> None:
    with pytest.warns(RuntimeWarning, match="does not protect this machine") as records:
        _ = [score([RIGHT], "process") for _ in range(2)]
    assert len(records) == 1


def test_a_machine_without_the_sandbox_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    reward = titanrl.build("reward", {"name": "code_tests"})
    bubblewrap.missing_for_strict.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    try:
        (problem,) = reward.problems()
        with pytest.raises(titanrl.ConfigError, match="isolation 'strict' needs bubblewrap"):
            reward(rows([RIGHT]))
    finally:
        bubblewrap.missing_for_strict.cache_clear()
    assert problem[0] == "isolation"
    assert "apt-get install bubblewrap" in problem[1]
    assert titanrl.build("reward", {"name": "code_tests", "isolation": "process"}).problems() == []


def test_a_package_that_is_not_installed_is_refused() -> None:
    reward = titanrl.build(
        "reward", {"name": "code_tests", "isolation": "process", "packages": ["no-such-package"]}
    )
    assert reward.problems() == [
        ("packages", "must be installed: package 'no-such-package' is not installed; install or remove it.")
    ]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"timeout_seconds": 0.0}, "timeout_seconds must be in"),
        ({"memory_mb": 8}, "memory_mb must be in [64, 4096], got 8"),
        ({"language": "rust"}, "language"),
        ({"isolation": "none"}, "isolation"),
    ],
)
def test_wrong_table_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(titanrl.ConfigError) as error:
        titanrl.build("reward", {"name": "code_tests", **keys})
    assert message in str(error.value)
