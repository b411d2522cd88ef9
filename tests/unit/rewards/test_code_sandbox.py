"""The sandbox of the reward code_tests: hostile programs score 0 and do no damage, right programs score 1."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.rewards.hostile_programs import FUNCTIONS, SCRIPTS
from tests.unit.rewards.right_programs import RIGHT
from titanrl.components.rewards.code_tests.grading import Grade, Settings, grade
from titanrl.runtime import bubblewrap
from titanrl.runtime.process_tree import ControlGroup
from titanrl.runtime.sandbox import Limits, Result, Sandbox, missing_for_strict
from titanrl.runtime.sandbox_mounts import base_python, is_reachable_by_all
from titanrl.runtime.worker_pool import CallResult, WorkerPool

strict = pytest.mark.skipif(bool(missing_for_strict()), reason=f"the sandbox {missing_for_strict()}")

ROOT = Path(__file__).parents[3]
TESTS = json.dumps({"tests": ["assert solve(2) == 4", "assert abs(solve(10) - 100) < 1e-6"]})
CASES = json.dumps({"cases": [{"stdin": "2\n", "stdout": "4\n"}, {"stdin": "10", "stdout": "100"}]})
HOSTILE = {**{name: (each, TESTS) for name, each in FUNCTIONS.items()}}
HOSTILE |= {name: (each, CASES) for name, each in SCRIPTS.items()}
BOOT_MARK = b"marshal.loads(read("
"""Occurs in the command of each process of a sandbox that grades."""


def settings(seconds: float = 20.0, **keys: Any) -> Settings:
    defaults: dict[str, Any] = {
        "memory_mb": 512,
        "partial": True,
        "isolation": "strict",
        "packages": ("numpy",),
    }
    return Settings(seconds, **(defaults | keys))


class Outside:
    """What hostile programs look for outside of their sandbox."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "exponent").write_text("2")
        folder.chmod(0o777)
        self.server = socket.create_server(("127.0.0.1", 0))
        self.datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.datagrams.bind(self.server.getsockname())
        self.datagrams.setblocking(False)
        self.num_connections = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            self.num_connections += 1
            with connection:
                connection.sendall(b"2")

    def fill_in(self, program: str) -> str:
        for name, value in (
            ("EXPONENT_FILE", str(self.folder / "exponent")),
            ("FOLDER", str(self.folder)),
            ("PORT", str(self.server.getsockname()[1])),
            ("PARENT", str(os.getpid())),
        ):
            program = program.replace(name, value)
        return program


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    each = Outside(tmp_path_factory.mktemp("outside"))
    os.environ["EXPONENT"] = "2"
    yield each
    del os.environ["EXPONENT"]
    each.server.close()
    each.datagrams.close()


def graded(items: list[tuple[str, str]], chosen: Settings) -> list[CallResult]:
    """Grade (program, reference answer) in workers that end afterwards."""
    pool = WorkerPool(grade)
    try:
        return pool.map([(*item, chosen) for item in items], chosen.timeout_seconds + 20)
    finally:
        pool.close()


def orphans() -> list[int]:
    """Return the processes of sandboxes whose worker has ended."""
    pids = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        pid = int(file.parent.name)
        if BOOT_MARK in _command(pid) and not _has_owner(pid):
            pids.append(pid)
    return pids


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _has_owner(pid: int) -> bool:
    while pid > 1:
        if b"titanrl.runtime.worker" in _command(pid) or b"pytest" in _command(pid):
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return True  # It has just ended.
    return False


@pytest.fixture(scope="module")
def hostile(outside: Outside) -> dict[str, CallResult]:
    """Return the outcomes of all hostile programs."""
    items = [(outside.fill_in(program), reference) for program, reference in HOSTILE.values()]
    outcomes = graded(items, settings(1.5))
    return dict(zip(HOSTILE, outcomes, strict=True))


@strict
@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_program_scores_zero_and_the_worker_lives(name: str, hostile: dict[str, CallResult]) -> None:
    outcome = hostile[name]
    assert outcome.failure is None
    assert outcome.value.score == 0.0


@strict
@pytest.mark.slow
def test_hostile_programs_leave_nothing_and_reach_nothing(
    hostile: dict[str, CallResult], outside: Outside
) -> None:
    assert hostile
    assert orphans() == []
    for folder in (
        outside.folder,
        "/root",
        "/home",
        "/work",
        "/var/tmp",
        "/etc",
        "/usr/lib",
        "/dev",
        "/dev/shm",
    ):
        assert not os.path.lexists(f"{folder}/titanrl-escape")
    assert outside.num_connections == 0
    with pytest.raises(BlockingIOError):
        outside.datagrams.recv(1)
    own = [group for group in Path("/sys/fs/cgroup").glob("**/titanrl-*") if group.is_dir()]
    dead = [group for group in own if not Path(f"/proc/{group.name.split('-')[1]}").exists()]
    for group in dead:  # Of workers that were killed; the next worker removes them.
        assert not (group / "cgroup.procs").read_text()


@pytest.mark.slow
def test_spying_programs_would_score_without_the_sandbox(outside: Outside) -> None:
    """The corpus is no corpus of programs that fail anyway."""
    spies = ["loopback", "sees_processes", "datagrams"]
    if os.geteuid() or not is_reachable_by_all(base_python()):  # Else the program runs as another user.
        spies += ["reads_file", "reads_through_root_link", "parent_environment"]
    items = [(outside.fill_in(FUNCTIONS[name]), TESTS) for name in spies]
    outcomes = graded(items, settings(isolation="process"))
    before = outside.num_connections
    assert [outcome.value.score for outcome in outcomes] == [1.0] * len(spies)
    outside.datagrams.recv(1)
    outside.datagrams.recv(1)
    outside.num_connections -= before


@pytest.fixture(scope="module")
def right() -> dict[str, CallResult]:
    items = [(program, json.dumps(reference)) for program, reference in RIGHT.values()]
    return dict(zip(RIGHT, graded(items, settings(30.0)), strict=True))


@strict
@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_right_program_scores_one(name: str, right: dict[str, CallResult]) -> None:
    assert right[name].failure is None
    assert right[name].value.score == 1.0


@strict
@pytest.mark.slow
def test_a_killed_worker_leaves_no_process() -> None:
    pool = WorkerPool(grade, num_workers=1)
    program = "import os, time\nos.fork()\nos.setsid()\ntime.sleep(600)"
    try:
        outcome = pool.map([(program, TESTS, settings(60.0))], 1.5)[0]
    finally:
        pool.close()
    assert outcome.failure == "timeout"
    end = time.monotonic() + 5
    while orphans() and time.monotonic() < end:
        time.sleep(0.05)
    assert orphans() == []


# ---------------------------------------------------------------------------------------- the sandbox itself


def run(code: str, seconds: float = 20.0, **limits: Any) -> Result:
    sandbox = Sandbox(Limits(**limits))
    try:
        return sandbox.run([base_python(), "-I", "-S", "-c", code], seconds=seconds, stdin=b"in")
    finally:
        sandbox.close()


@pytest.mark.slow
@strict
def test_program_has_no_rights_descriptors_environment_or_files() -> None:
    code = """
import ctypes, json, os, sys
c = ctypes.CDLL(None)
fds = []
for fd in range(64):
    try: os.fstat(fd); fds.append(fd)
    except OSError: pass
writable = [path for path, _, _ in os.walk('/') if os.access(path, os.W_OK)]
print(json.dumps({
    'root': os.getuid() == 0, 'group': os.getgid() == 0, 'pid': os.getpid(), 'fds': fds, 'writable': writable,
    'env': sorted(os.environ), 'privileges': c.prctl(39, 0, 0, 0, 0), 'filter': c.prctl(21),
    'cwd': os.listdir('.'), 'top': sorted(os.listdir('/')), 'stdin': sys.stdin.read(),
    'home': os.path.exists(HOME),
}))
"""
    result = run(code.replace("HOME", repr(str(ROOT))))
    facts = json.loads(result.stdout)
    top = facts.pop("top")
    assert facts == {
        "root": False,
        "group": False,
        "pid": 1,
        "fds": [0, 1, 2],
        "writable": ["/tmp"],
        "env": sorted([*bubblewrap.ENVIRONMENT, "PWD"]),
        "privileges": 1,
        "filter": 2,
        "cwd": [],
        "stdin": "in",
        "home": False,
    }
    assert {"proc", "sys", "work", "mnt", "var", "run"}.isdisjoint(top)


MANY = """
import os, time
for i in range(8):
    if os.fork() == 0:
        x = b'x' * (100 << 20)
        time.sleep(60)
time.sleep(60)
"""
BUSY = """
import os
for i in range(4): os.fork()
while True: pass
"""


@strict
@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "limits", "killed_for"),
    [
        (MANY, {"memory_mb": 256}, "memory"),
        (BUSY, {"cpu_seconds": 1.0}, "cpu"),
        ("import os\nfor i in range(10**6): os.mkdir(str(i))", {}, "files"),
        ("while True: print('x' * 10000)", {}, "output"),
        ("import time; time.sleep(60)", {"seconds": 0.3}, "wall time"),
    ],
)
def test_watch_kills_what_exceeds_a_limit_without_control_groups(
    code: str, limits: dict[str, Any], killed_for: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ControlGroup, "create", lambda *arguments: None)
    assert run(code, **limits).killed_for == killed_for


@strict
def test_status_and_output_are_returned() -> None:
    assert run("print('x'); raise SystemExit(3)") == Result(3, b"x\n", "")


@strict
@pytest.mark.slow
def test_throughput_is_printed_and_above_a_floor(capsys: pytest.CaptureFixture[str]) -> None:
    program = "def solve(n): return n * n"
    grade(program, TESTS, settings())
    began, wall = _cpu_seconds(), time.monotonic()
    for _ in range(25):
        assert grade(program, TESTS, settings()) == Grade(1.0, 0, 2)
    used, wall = _cpu_seconds() - began, time.monotonic() - wall
    with capsys.disabled():
        print(
            f"\ncode_tests: {25 / used:.0f} programs per CPU second, {25 / wall:.0f} per second of one worker"
        )
    # A machine whose cores are shared by two threads each takes up to twice the CPU time.
    assert 25 / used > 12


def _cpu_seconds() -> float:
    usages = (resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


PLAIN_USER = """
import json, sys
from titanrl.components.rewards.code_tests.grading import Settings, grade
settings = Settings(3.0, 512, True, "strict", ())
print(json.dumps([grade(*item, settings).score for item in json.loads(sys.argv[1])]))
"""


@strict
@pytest.mark.slow
def test_a_user_who_is_not_root_has_the_same_sandbox(outside: Outside) -> None:
    if os.geteuid():
        pytest.skip("the other tests of this file run as a user who is not root")
    python = "/usr/bin/python3"
    command = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", python]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    version = [*command, "-c", f"import sys, titanrl; assert sys.version_info[:2] == {sys.version_info[:2]}"]
    if subprocess.run(version, env=environment, capture_output=True).returncode:
        pytest.skip("no Python 3.11 that a user who is not root can run, or the repository is not readable")
    names = (
        "reads_file",
        "loopback",
        "parent_environment",
        "kills_all",
        "fork_bomb",
        "memory_of_many",
        "object_equal_to_all",
    )
    items = [(outside.fill_in(FUNCTIONS[name]), TESTS) for name in names]
    items += [("def solve(n): return n * n", TESTS), ("n = int(input())\nprint(n * n)", CASES)]
    done = subprocess.run(
        [*command, "-c", PLAIN_USER, json.dumps(items)],
        env=environment,
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0.0] * len(names) + [1.0, 1.0]
