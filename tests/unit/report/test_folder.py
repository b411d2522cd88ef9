"""Run folders: claimed once, found by their recorded name, locked by one process; settings by step."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from titanrl.errors import ConfigError, TrainingError
from titanrl.report import lock as lock_module
from titanrl.report.folder import RunFolder
from titanrl.report.lock import FolderLock, Owner

HOLD = """
import sys, time
from pathlib import Path
from titanrl.report.lock import FolderLock
FolderLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_runs_are_numbered_from_the_largest_number_of_their_name(tmp_path):
    names = [RunFolder.claim(tmp_path, "r").path.name for _ in range(3)]
    assert names == ["r", "r-2", "r-3"]
    (tmp_path / "r-9").mkdir()  # Folders without a recorded name count too.
    (tmp_path / "r-10").mkdir()
    assert RunFolder.claim(tmp_path, "r").path.name == "r-11"
    shutil.rmtree(tmp_path / "r-2")
    assert RunFolder.claim(tmp_path, "r").path.name == "r-12"


def test_names_that_look_like_numbers_are_not_confused(tmp_path):
    other = RunFolder.claim(tmp_path, "zz-2")
    first = RunFolder.claim(tmp_path, "zz")
    assert (other.path.name, first.path.name) == ("zz-2", "zz")
    assert RunFolder.newest(tmp_path, "zz").path == first.path
    second = RunFolder.claim(tmp_path, "zz")
    assert second.path.name == "zz-3"  # zz-2 is taken by another name.
    assert RunFolder.newest(tmp_path, "zz").path == second.path
    assert RunFolder.claim(tmp_path, "zz-2").path.name == "zz-2-2"
    with pytest.raises(
        ConfigError, match=r"--resume found no run named 'z' in .*; start it without --resume"
    ):
        RunFolder.newest(tmp_path, "z")


def test_run_of_an_earlier_version_is_found_by_the_name_in_its_file(tmp_path):
    for name, folder in (("zz", "zz"), ("zz", "zz-3"), ("zz-7", "zz-7")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "experiment.toml").write_text(f'[run]\nname = "{name}"\n')
    assert RunFolder.newest(tmp_path, "zz").path.name == "zz-3"
    assert RunFolder.claim(tmp_path, "zz").path.name == "zz-4"


def test_copy_of_a_run_is_not_taken_for_the_run(tmp_path):
    run = RunFolder.claim(tmp_path, "a")
    for copy in ("a-copy", "0-a"):
        shutil.copytree(run.path, tmp_path / copy)
    assert RunFolder.newest(tmp_path, "a").path == run.path


def test_concurrent_starts_get_folders_of_their_own(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        folders = list(pool.map(lambda _: RunFolder.claim(tmp_path / "runs", "a").path.name, range(32)))
    assert sorted(folders) == sorted(["a", *(f"a-{number}" for number in range(2, 33))])


def test_second_process_is_refused_until_the_owner_has_ended(tmp_path):
    path = tmp_path / "run.lock"
    owner = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "held\n"
    host = Owner.current().host
    with pytest.raises(ConfigError, match=rf"is being written by process {owner.pid} on host {host}; wait"):
        FolderLock(path).acquire()
    owner.kill()
    owner.wait()
    lock = FolderLock(path)
    lock.acquire()
    with pytest.raises(ConfigError, match=f"process {os.getpid()} on host"):
        FolderLock(path).acquire()
    lock.release()
    FolderLock(path).acquire()


def write_lock(path: Path, owner: Owner) -> None:
    path.write_text(json.dumps(asdict(owner)))


def test_recycled_pid_is_not_taken_for_the_owner(tmp_path):
    path = tmp_path / "run.lock"
    write_lock(path, replace(Owner.current(), started=Owner.current().started - 3600))
    FolderLock(path).acquire()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": 3}', "\0\0"])
def test_broken_lock_belongs_to_nobody(tmp_path, text):
    (tmp_path / "run.lock").write_text(text)
    FolderLock(tmp_path / "run.lock").acquire()


@pytest.mark.parametrize("elsewhere", [{"host": "far"}, {"namespace": "pid:[1]"}])
def test_lock_of_another_host_is_stale_when_it_is_no_longer_refreshed(tmp_path, elsewhere):
    path = tmp_path / "run.lock"
    write_lock(path, replace(Owner.current(), pid=7, **elsewhere))
    with pytest.raises(ConfigError, match=r"process 7 on host .* try again in 5 minutes"):
        FolderLock(path).acquire()
    aged = time.time() - lock_module.STALE_SECONDS - 5
    os.utime(path, (aged, aged))
    FolderLock(path).acquire()


def test_owner_refreshes_its_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(lock_module, "REFRESH_SECONDS", 0.01)
    lock = FolderLock(tmp_path / "run.lock")
    lock.acquire()
    os.utime(lock.path, (1, 1))
    deadline = time.monotonic() + 10
    while lock.path.stat().st_mtime == 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lock.release()


def test_owner_that_lost_its_lock_stops_and_leaves_the_new_lock(tmp_path):
    lock = FolderLock(tmp_path / "run.lock")
    lock.acquire()
    lock.verify()
    other = replace(Owner.current(), pid=1)
    write_lock(lock.path, other)
    with pytest.raises(TrainingError, match=r"process 1 on host .* now holds the lock"):
        lock.verify()
    lock.release()
    assert json.loads(lock.path.read_text()) == asdict(other)


def test_settings_hold_from_the_step_at_which_their_process_began(tmp_path):
    folder = RunFolder.claim(tmp_path, "a")
    files = {lr: {"run": {"name": "a", "seed": 0}, "optimizer": {"lr": lr}} for lr in (0.1, 0.2, 0.3)}
    folder.write_experiment(files[0.1], seed=0)

    def begin(lr: float, step: int) -> list[tuple[int, str]]:
        folder.begin_session(files[lr], first_step=step)
        return [(each.first_step, each.path.name) for each in folder.settings()]

    assert begin(0.1, 0) == [(0, "experiment.toml")]
    assert begin(0.1, 3) == [(0, "experiment.toml")]
    later = (4, "experiment-from-step-00004.toml")
    assert begin(0.2, 4) == [(0, "experiment.toml"), later]
    assert begin(0.2, 6) == [(0, "experiment.toml"), later]
    assert folder.config.read_text() == '[run]\nname = "a"\nseed = 0\n\n[optimizer]\nlr = 0.2\n'
    # Resumed from before step 4: no step of the present history was made with the file of step 4.
    assert begin(0.3, 2) == [(0, "experiment.toml"), (2, "experiment-from-step-00002.toml")]
    assert begin(0.1, 2) == [(0, "experiment.toml"), (2, "experiment-from-step-00002-2.toml")]
    sessions = [json.loads(line) for line in folder.sessions.read_text().splitlines()]
    assert [each["first_step"] for each in sessions] == [0, 3, 4, 6, 2, 2]
    assert {"date", "host", "pid", "command", "working_directory", "versions"} <= sessions[0].keys()
    assert sessions[0]["versions"]["torch"].startswith("2.")


def test_session_records_the_commit_of_a_checkout(tmp_path, monkeypatch):
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x", "--no-gpg-sign"]):
        (tmp_path / "file").write_text("1")
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    folder = RunFolder.claim(tmp_path / "runs", "a")
    folder.write_experiment({}, seed=0)
    folder.begin_session({}, first_step=0)
    (tmp_path / "file").write_text("2")
    folder.begin_session({}, first_step=1)
    sessions = [json.loads(line) for line in folder.sessions.read_text().splitlines()]
    assert [(each["git_commit"], each["git_has_changes"]) for each in sessions] == [
        (head, False),
        (head, True),
    ]


def test_folder_without_records_is_removed_and_another_one_set_aside(tmp_path):
    folder = RunFolder.claim(tmp_path, "a")
    assert folder.set_aside() is None
    assert not folder.path.exists()
    folder = RunFolder.claim(tmp_path, "a")
    folder.metrics.write_text('{"step": 1}\n')
    folder.lock.acquire()
    with pytest.raises(ConfigError, match="is being written by process"):
        folder.set_aside()
    folder.lock.release()
    assert folder.set_aside() == tmp_path / "a-set-aside"
    assert (tmp_path / "a-set-aside" / "metrics.jsonl").read_text() == '{"step": 1}\n'
    assert RunFolder.claim(tmp_path, "a").path.name == "a"
