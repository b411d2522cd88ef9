"""Resuming a run: what may change, what is refused, and that no record of an earlier step is lost."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.e2e.test_training import FILE, ROOT, lines
from titanrl.cli.app import app
from titanrl.config import load
from titanrl.errors import ConfigError
from titanrl.models import tiny
from titanrl.report.folder import RunFolder
from titanrl.report.record import RunRecord
from titanrl.report.run_report import write_report
from titanrl.training import online
from titanrl.training.run import train

Resume = Callable[..., Path]

SFT = """
base = "{root}/experiments/algorithms/sft.toml"
[run]
folder = "{folder}/runs"
name = "tiny"
[model]
path = "{folder}/model"
[data]
name = "dataset"
path = "{folder}/answers.jsonl"
format = "prompt_completion"
[loop]
steps = 4
prompts_per_step = 4
"""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an experiment whose run has two of two steps, with a checkpoint of each."""
    folder = tmp_path_factory.mktemp("stopped")
    tiny.create(folder / "model", scale=0.3)
    tiny.create(folder / "wide_model", scale=0.3, hidden=64)
    prompts = [{"prompt": f"say {number}", "answer": str(number)} for number in range(7)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    (folder / "answers.jsonl").write_text(json.dumps({"prompt": "say", "completion": "1"}))
    (folder / "experiment.toml").write_text(FILE.format(root=ROOT, folder=folder))
    (folder / "sft.toml").write_text(SFT.format(root=ROOT, folder=folder))
    train(load(folder / "experiment.toml", ["loop.steps=2"]))
    return folder


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """Return a copy of the run folder."""
    return Path(shutil.copytree(stopped / "runs" / "tiny", tmp_path / "runs" / "tiny"))


@pytest.fixture
def resume(stopped: Path, run: Path) -> Resume:
    """Return a function that resumes the copy with overrides."""

    def resume(*overrides: str, accept: Sequence[str] = (), file: str = "experiment.toml") -> Path:
        overrides = (f"run.folder='{run.parent}'", "loop.steps=3", *overrides)
        return train(load(stopped / file, overrides), resume=True, accept=accept)

    return resume


def contents(run: Path) -> dict[str, bytes]:
    """Return the files of the history."""
    names = ("metrics.jsonl", "samples.jsonl", "experiment.toml", "sessions.jsonl")
    return {name: (run / name).read_bytes() for name in names} | {
        str(path.relative_to(run)): b"" for path in run.rglob("*")
    }


CHANGED = {
    "run.seed": ["run.seed=1"],
    "optimizer.lr": ["optimizer.lr=1e-3"],
    "optimizer.beta2": ["optimizer.beta2=0.9"],
    "optimizer.name": ["optimizer.name=Adam"],
    "lr_scheduler.warmup_steps": ["lr_scheduler.warmup_steps=2"],
    "prompts.path": ["prompts.path='{folder}/sft.toml'"],
    "sampler.temperature": ["sampler.temperature=0.5"],
    "sampler.max_response_tokens": ["sampler.max_response_tokens=4"],
    "reward.0.weight": ["reward.0.weight=2"],
    "reward.0.n": ["reward.0.n=2"],
    "reward.1": ["reward=[{{name='repetition',n=1}},{{name='exact_match'}}]"],
    "algorithm.loss": ["algorithm.loss.name=reinforce"],
    "algorithm.advantage": ["algorithm.advantage.name=rloo"],
    "algorithm.aggregation": ["algorithm.aggregation.name=token_mean"],
    "algorithm.kl.coefficient": ["algorithm.kl.coefficient=0.5"],
    "reference.dtype": ["reference.dtype=bfloat16"],
    "loop.prompts_per_step": ["loop.prompts_per_step=8"],
    "loop.samples_per_prompt": ["loop.samples_per_prompt=2"],
    "loop.epochs": ["loop.epochs=2"],
    "evaluation.num_prompts": ["evaluation.num_prompts=3"],
    "training.max_norm": ["training.max_norm=2"],
    "training.mixed_precision_param": ["training.mixed_precision_param=bfloat16"],
    "model.path": ["model.path='{folder}/wide_model'"],
}


@pytest.mark.parametrize("key", CHANGED)
def test_change_of_what_is_measured_is_refused_before_anything_is_touched(key, stopped, run, resume, capsys):
    before = contents(run)
    overrides = [each.format(folder=stopped) for each in CHANGED[key]]
    with pytest.raises(
        ConfigError, match=rf"would change what the run measures(.|\n)*--accept {re.escape(key)}\b"
    ):
        resume(*overrides)
    assert re.search(rf"changed since the run: {re.escape(key)}", capsys.readouterr().out)
    assert contents(run) == before


@pytest.mark.parametrize(
    ("file", "overrides", "key"),
    [
        ("sft.toml", [], "data: absent -> a table"),
        ("experiment.toml", ["algorithm.advantage.name=gae", "critic={}"], "critic: absent -> a table"),
    ],
)
def test_change_that_no_checkpoint_fits_is_refused_even_if_accepted(run, resume, file, overrides, key):
    before = contents(run)
    with pytest.raises(ConfigError, match=rf"cannot continue(.|\n)*{key}(.|\n)*start a new run"):
        resume(*overrides, file=file, accept=["all"])
    assert contents(run) == before


def test_accepted_key_must_exist_and_needs_resume(stopped, resume):
    with pytest.raises(ConfigError, match=r"--accept optimizer.lrr is no key .*did you mean 'optimizer.lr'"):
        resume(accept=["optimizer.lrr"])
    with pytest.raises(ConfigError, match="--accept must be given with --resume"):
        train(load(stopped / "experiment.toml"), accept=["optimizer.lr"])


def test_accepted_model_of_another_shape_ends_with_a_sentence(stopped, run, resume):
    before = contents(run)
    with pytest.raises(ConfigError, match=r"the checkpoint of '.*' does not fit"):
        resume(f"model.path='{stopped}/wide_model'", accept=["model.path"])
    assert contents(run) == before


def test_finished_run_is_told_and_left_alone(stopped, run):
    before = contents(run)
    arguments = ["train", str(stopped / "experiment.toml"), f"--set=run.folder='{run.parent}'", "--resume"]
    done = CliRunner().invoke(app, [*arguments, "--set=loop.steps=2"])
    assert done.exit_code == 0
    assert re.search(r"finished: 2 of 2 steps.*raise \[loop\] steps", done.output)
    short = CliRunner().invoke(app, [*arguments, "--set=loop.steps=1"])
    assert short.exit_code == 2
    assert re.search(
        r"\[loop\] steps must be >= 2, the steps that '.*tiny' has done, got 1; raise it", short.output
    )
    assert contents(run) == before


@pytest.mark.parametrize("case", ["removed", "incomplete", "disabled"])
def test_resume_without_a_checkpoint_leaves_the_history(case, run, resume):
    overrides = ["checkpoint.enable=false"] if case == "disabled" else []
    if case == "removed":
        shutil.rmtree(run / "checkpoints")
    elif case == "incomplete":
        for path in run.glob("checkpoints/*/manifest.json"):
            path.unlink()
    before = contents(run)
    with pytest.raises(ConfigError, match=r"found no complete checkpoint|needs checkpoints, got"):
        resume(*overrides)
    assert contents(run) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:5], r"it has 5 rows, had 7"),
        (lambda rows: rows[::-1], r"6 of 7 compared rows are in another order, the first is row 0"),
        (
            lambda rows: [rows[0], *rows[1:3], rows[0], *rows[4:]],
            r"1 of 7 compared rows differ, the first is row 3",
        ),
    ],
)
def test_changed_rows_of_the_source_are_refused(stopped, run, resume, tmp_path, change, message):
    rows = (stopped / "prompts.jsonl").read_text().split("\n")
    other = tmp_path / "prompts.jsonl"
    other.write_text("\n".join(change(rows)))
    before = contents(run)
    with pytest.raises(ConfigError, match=rf"{message}(.|\n)*--accept prompts.contents"):
        resume(f"prompts.path='{other}'", accept=["prompts.path"])
    assert contents(run) == before


def test_resume_keeps_the_history_and_records_the_accepted_settings(run, resume, tmp_path, capsys):
    shutil.rmtree(run / "checkpoints" / "step-2")
    metrics, samples = (run / "metrics.jsonl").read_bytes(), (run / "samples.jsonl").read_bytes()
    first, second, third = metrics.splitlines(keepends=True)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "say 1"}\n{"prompt": "say 2"}\n')
    overrides = ("optimizer.lr=1e-3", "report.samples_per_step=2", f"prompts.path='{prompts}'")
    (run / "metrics.jsonl").write_bytes(first + b"\xff broken \n" + second + third)
    assert resume(*overrides, accept=["optimizer", "prompts"]) == run
    written = (run / "metrics.jsonl").read_bytes()
    assert written.startswith(first + b"\xff broken \n" + second)
    steps = [json.loads(line)["step"] for line in written.splitlines() if b"broken" not in line]
    assert steps == [0, 1, 2, 3]
    assert (run / "superseded" / "metrics-from-step-00002.jsonl").read_bytes() == third
    kept = [line for line in samples.splitlines(keepends=True) if json.loads(line)["step"] == 1]
    assert (run / "samples.jsonl").read_bytes().startswith(b"".join(kept))
    assert load(run / "experiment.toml").optimizer.lr == 1e-2
    assert load(run / "experiment-from-step-00001.toml").optimizer.lr == 1e-3
    assert [(each["first_step"], each["settings"]) for each in lines(run, "sessions.jsonl")] == [
        (0, "experiment.toml"),
        (1, "experiment-from-step-00001.toml"),
    ]
    session = lines(run, "sessions.jsonl")[1]
    assert "optimizer.lr: 0.01 -> 0.001" in session["changes"]
    assert session["sources"]["prompts"]["rows"] == 2
    assert session["sources"]["evaluation.prompts"]["rows"] == 7
    output = capsys.readouterr().out
    assert "report.samples_per_step: 10 -> 2; harmless" in output
    assert f"resumes '{run}' after step 1" in output
    assert re.search(
        r"moved to .*superseded: 1 of metrics.jsonl, \d+ of samples.jsonl", output.replace("\n", " ")
    )
    with pytest.warns(UserWarning, match="skipped 1 broken line: 2"):
        record = RunRecord.read(run)
    assert (1, "optimizer.lr", 0.01, 0.001) in record.changes
    assert record.table["optimizer"]["lr"] == 1e-3
    with pytest.warns(UserWarning, match="skipped 1 broken line"):
        page = write_report([run], tmp_path / "report.html").read_text()
    assert "Settings that changed when a run was resumed" in page
    console = (run / "console.log").read_text()
    assert re.search(r"^\d{4}-\d\d-\d\dT\S+  step 1/2  reward", console, re.MULTILINE)
    assert re.search(r"^\d{4}-\d\d-\d\dT\S+  step 3/3  reward", console, re.MULTILINE)


def test_running_run_is_refused_to_a_second_process_and_its_name_gets_a_new_folder(
    stopped, tmp_path, monkeypatch
):
    original, seen = online.train_step, list[Any]()

    def step(session: Any, step: int, timer: Any) -> Any:
        if not seen:
            seen.append("began")
            with pytest.raises(ConfigError, match=rf"written by process {os.getpid()} on host") as error:
                train(experiment, resume=True)
            seen[:] = [error, RunFolder.claim(tmp_path, "tiny").path.name]
        return original(session, step, timer)

    experiment = load(
        stopped / "experiment.toml", [f"run.folder='{tmp_path}'", "loop.steps=1", "evaluation="]
    )
    monkeypatch.setattr(online, "train_step", step)
    assert train(experiment).name == "tiny"
    assert seen[1] == "tiny-2"
    (line,) = lines(tmp_path / "tiny")
    assert line["time/unix_seconds"] > 1.7e9


def test_run_without_readable_settings_is_refused(run, resume):
    (run / "experiment.toml").write_text("[run\n")
    with pytest.raises(ConfigError, match=r"cannot read the settings of the run.*no valid TOML"):
        resume()


def test_run_with_a_key_that_no_longer_exists_is_compared_as_it_is_written(run, resume):
    (run / "experiment.toml").write_text((run / "experiment.toml").read_text() + "[old]\nkey = 1\n")
    with pytest.raises(ConfigError, match=r"old\.key: 1 -> absent(.|\n)*--accept old\.key"):
        resume()


def test_mistake_before_the_first_step_leaves_no_folder(stopped, tmp_path):
    overrides = [f"run.folder='{tmp_path / 'runs'}'", "training.seq_len=10"]
    with pytest.raises(ConfigError, match="tokens, more than"):
        train(load(stopped / "experiment.toml", overrides))
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.sweep
@pytest.mark.timeout(1800)
def test_no_record_is_lost_by_kills_at_random_moments(stopped, tmp_path):
    """20 kills, each at a random moment up to one second after a step, then a resume."""
    draw, steps = random.Random(0), 60
    run, overrides = tmp_path / "runs" / "tiny", [f"run.folder='{tmp_path / 'runs'}'", f"loop.steps={steps}"]
    command = [sys.executable, "-m", "titanrl", "train", str(stopped / "experiment.toml")]
    command += [f"--set={each}" for each in overrides]
    files = ("metrics.jsonl", "samples.jsonl")
    before: dict[str, bytes] = dict.fromkeys(files, b"")
    for number in range(20):
        resumed = ["--resume"] if number else []
        process = subprocess.Popen([*command, *resumed], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _, line in zip(range(draw.randrange(1, 3)), filter(is_step, process.stdout), strict=False):
            assert line
        time.sleep(draw.random())
        process.kill()
        process.wait()
        first = 0 if not number else int(last_session(run)["first_step"])
        for name in files:
            lines_before = before[name].splitlines(keepends=True)
            earlier = [raw for raw in lines_before if is_complete(raw) and json.loads(raw)["step"] <= first]
            before[name] = (run / name).read_bytes()
            assert before[name].startswith(b"".join(earlier)), (number, name)
            numbers = [
                json.loads(raw)["step"] for raw in before[name].splitlines() if is_complete(raw + b"\n")
            ]
            assert set(numbers) == set(range(1 if name == "samples.jsonl" else 0, max(numbers) + 1))
    whole = train(load(stopped / "experiment.toml", [*overrides, "run.name=whole"]))
    last = train(load(stopped / "experiment.toml", overrides), resume=True)
    recorded, expected = ([without_times(line) for line in lines(each)] for each in (last, whole))
    assert recorded == expected


def is_step(line: str) -> bool:
    return line.startswith("step ")


def is_complete(raw: bytes) -> bool:
    return raw.endswith(b"}\n")


def last_session(run: Path) -> dict[str, Any]:
    return lines(run, "sessions.jsonl")[-1]


def without_times(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if not key.startswith("time/")}
