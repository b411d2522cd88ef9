"""Whole runs on the tiny model, through the front door."""

from __future__ import annotations

import json
import multiprocessing
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.distributed.torchrun import train_on_ranks
from tests.metrics_page import documented_metrics
from titanrl.config import load
from titanrl.engine.export import export_run
from titanrl.errors import TrainingError
from titanrl.models import tiny
from titanrl.training import online
from titanrl.training.run import train

ROOT = Path(__file__).parents[2]
FILE = """
base = "{root}/experiments/algorithms/grpo.toml"
[run]
folder = "{folder}/runs"
name = "tiny"
[model]
path = "{folder}/model"
[prompts]
name = "jsonl"
path = "{folder}/prompts.jsonl"
[sampler]
name = "torch"
max_response_tokens = 8
[[reward]]
name = "repetition"
n = 1
[loop]
steps = 4
prompts_per_step = 4
samples_per_prompt = 4
[evaluation]
interval = 2
num_prompts = 2
[evaluation.prompts]
name = "jsonl"
path = "{folder}/prompts.jsonl"
[training]
seq_len = 64
mixed_precision_param = "float32"
[optimizer]
lr = 1e-2
[checkpoint]
interval = 1
keep_latest_k = 0
[report]
tensorboard = false
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An experiment of four steps, rewarded for letters that do not repeat."""
    tiny.create(tmp_path / "model", scale=0.3)
    prompts = [{"prompt": f"say {number}", "answer": str(number)} for number in range(7)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    path = tmp_path / "experiment.toml"
    path.write_text(FILE.format(root=ROOT, folder=tmp_path))
    return path


def lines(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def weights(run: Path, to: Path) -> dict[str, torch.Tensor]:
    return load_file(export_run(run, to) / "model.safetensors")


def command(file: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "titanrl", "train", str(file), *arguments]


def assert_resumes_bitwise(
    file: Path,
    stops: Iterable[int],
    *,
    within: ModuleType,
    weights: Callable[[Path, Path], dict[str, torch.Tensor]],
    monkeypatch: pytest.MonkeyPatch,
    overrides: Sequence[str] = (),
) -> None:
    """Stops a run before each of the steps and resumes it: weights and metrics are those of a whole run.

    Args:
        within: the module whose train_step the experiment calls. weights: of a run, exported to a folder.
        overrides: of the runs that are stopped.
    """
    whole = train(load(file, ["run.name=whole"]))
    expected = weights(whole, file.parent / "whole")
    original = within.train_step
    for stop in stops:
        experiment = load(file, [f"run.name=stopped{stop}", *overrides])

        def broken(session: Any, step: int, clock: Any, stop: int = stop) -> Any:
            if step == stop:
                raise KeyboardInterrupt
            return original(session, step, clock)

        monkeypatch.setattr(within, "train_step", broken)
        with pytest.raises(KeyboardInterrupt):
            train(experiment)
        monkeypatch.setattr(within, "train_step", original)
        resumed = train(experiment, resume=True)
        found = weights(resumed, file.parent / f"stopped{stop}")
        assert all(torch.equal(found[name], value) for name, value in expected.items())
        kept = [
            [{k: v for k, v in row.items() if not k.startswith("time/")} for row in lines(run)]
            for run in (whole, resumed)
        ]
        assert kept[0] == kept[1]


def test_run_stopped_at_any_step_and_resumed_gives_the_same_weights_bitwise(file, monkeypatch):
    assert_resumes_bitwise(file, (1, 2, 3), within=online, weights=weights, monkeypatch=monkeypatch)


def test_workers_do_not_change_a_run_and_it_resumes_bitwise(file, monkeypatch):
    overrides = ["loop.data_workers=2"]
    assert_resumes_bitwise(
        file, [2], within=online, weights=weights, monkeypatch=monkeypatch, overrides=overrides
    )
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_killed_process_resumes_to_the_same_weights_bitwise(file, tmp_path):
    whole = train(load(file, ["run.name=whole"]))
    process = subprocess.Popen(command(file), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run = tmp_path / "runs" / "tiny"
    deadline = time.monotonic() + 120
    while not ((run / "metrics.jsonl").is_file() and len(lines(run)) >= 3):
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = subprocess.run(command(file, "--resume"), cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    expected, found = weights(whole, tmp_path / "a"), weights(run, tmp_path / "b")
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert [row["step"] for row in lines(run)] == [0, 1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_give_the_run_of_one(file, tmp_path):
    overrides = ["loop.steps=3"]
    found = {"one": train(load(file, [*overrides, "run.name=one"]))}
    found |= train_on_ranks(tmp_path / "ranks", 2, dict.fromkeys(("two", "again"), (file, overrides)))
    runs = {name: lines(run) for name, run in found.items()}
    for two, again in zip(runs["two"], runs["again"], strict=True):
        timeless = [{k: v for k, v in row.items() if not k.startswith("time")} for row in (two, again)]
        assert timeless[0] == timeless[1], "equal runs of the same ranks are equal bit by bit"
    for one, two in zip(runs["one"], runs["two"], strict=True):
        for key in (
            "reward/mean",
            "loss/total",
            "kl/value",
            "loss/entropy",
            "update/grad_norm",
            "eval/score",
        ):
            assert (key in one) == (key in two)
            assert two.get(key, 0.0) == pytest.approx(one.get(key, 0.0), rel=1e-4, abs=1e-5), (
                one["step"],
                key,
            )


def test_every_metric_is_documented_and_every_run_file_is_there(file):
    run = train(load(file, ["report.tensorboard=true", "loop.steps=2"]))
    documented = documented_metrics("repetition")
    for row in lines(run):
        for name in row.keys() - {"step"}:
            assert name in documented or re.fullmatch(r"time/\w+_seconds", name), name
    for name in (
        "experiment.toml",
        "versions.json",
        "samples.jsonl",
        "curves.png",
        "tensorboard",
        "checkpoints",
    ):
        assert (run / name).exists(), name
    sample = lines(run, "samples.jsonl")[0]
    assert {"prompt", "response", "reward", "rewards", "advantage", "finish_reason"} <= sample.keys()


def test_resolved_experiment_file_reproduces_the_run(file, tmp_path):
    first = train(load(file, ["loop.steps=2"]))
    again = train(load(first / "experiment.toml"))
    assert [row.get("loss/total") for row in lines(first)] == [row.get("loss/total") for row in lines(again)]
    assert again != first


def test_batch_of_equal_rewards_does_not_change_the_policy_and_is_counted(file, tmp_path):
    overrides = ["reward=[{name='exact_match'}]", "algorithm.kl=", "reference=", "loop.steps=1"]
    run = train(load(file, overrides))
    (row,) = (row for row in lines(run) if row["step"] == 1)
    assert row["update/skipped"] == 1.0
    assert row["advantage/frac_zero_std"] == 1.0
    before, after = load_file(tmp_path / "model" / "model.safetensors"), weights(run, tmp_path / "out")
    assert all(torch.equal(after[name], value.float()) for name, value in before.items())


def test_filter_that_drops_everything_ends_the_run_with_a_remedy(file):
    overrides = [
        "reward=[{name='exact_match'}]",
        "algorithm.filter=[{name='zero_variance'}]",
        "loop.max_resample_attempts=1",
    ]
    with pytest.raises(TrainingError, match=r"dropped every group in 2 attempts of step 0; loosen"):
        train(load(file, overrides))


DYNAMIC = [
    "reward=[{name='format_regex', pattern='(?s).*[a-m].*'}]",
    "algorithm.filter=[{name='zero_variance'}]",
    "loop.samples_per_prompt=2",
    "loop.dynamic_sampling=true",
    "loop.steps=3",
    "sampler.max_response_tokens=2",
    "evaluation.interval=0",
]


def test_dynamic_sampling_fills_each_step_with_groups_that_pass_the_filters(file, monkeypatch):
    trained = []

    def optimize(session, batch, step, *, on_policy, do=online.optimize):
        trained.append(batch)
        return do(session, batch, step, on_policy=on_policy)

    monkeypatch.setattr(online, "optimize", optimize)
    metrics = [line for line in lines(train(load(file, DYNAMIC))) if line["step"]]
    assert [len(batch["group_id"].unique()) for batch in trained] == [4, 4, 4]
    for batch, line in zip(trained, metrics, strict=True):
        rewards = batch["reward"].view(4, 2)
        assert bool((rewards[:, 0] != rewards[:, 1]).all())
        sampled = 8 * (1 + line["sample/resample_attempts"])
        passed = 2 * (4 + line["filter/surplus_groups"])
        assert line["filter/kept_fraction"] == pytest.approx(passed / sampled)
        assert line["filter/missing_groups"] == 0
    assert max(line["sample/resample_attempts"] for line in metrics) >= 1


def test_step_that_cannot_be_filled_trains_on_the_groups_there_are(file):
    metrics = lines(train(load(file, [*DYNAMIC, "loop.max_resample_attempts=0", "loop.steps=1"])))
    assert 1 <= metrics[-1]["filter/missing_groups"] <= 3


def test_reward_that_raises_fails_only_its_rows_and_is_logged_once(file, tmp_path, capsys):
    (tmp_path / "my_rewards.py").write_text(
        "import torch\nfrom dataclasses import dataclass\nfrom titanrl import register\n\n"
        '@register("reward", "brittle_training")\n@dataclass(frozen=True, slots=True, kw_only=True)\n'
        "class Brittle:\n"
        '    """Fails on the responses to every other prompt."""\n'
        "    def __call__(self, batch):\n"
        "        if bool((batch['group_id'] % 2 == 0).any()):\n"
        "            raise RuntimeError('even')\n"
        "        return torch.ones(len(batch))\n"
    )
    overrides = [
        f"imports=['{tmp_path}/my_rewards.py']",
        "reward=[{name='brittle_training', failure_score=-1.0}]",
        "loop.steps=2",
        "evaluation=",
    ]
    run = train(load(file, overrides))
    output = " ".join(capsys.readouterr().out.split())
    message = "reward brittle_training failed: RuntimeError: even; failed responses get its failure_score"
    assert output.count(message) == 1
    rows = lines(run, "samples.jsonl")
    assert all(row["reward"] == (-1.0 if row["group"] % 2 == 0 else 1.0) for row in rows)
    (metrics,) = (row for row in lines(run) if row["step"] == 1)
    assert metrics["reward/brittle_training_failures"] > 0


def test_prompt_longer_than_the_context_is_refused_with_its_number(file):
    done = subprocess.run(
        command(file, "--set", "training.seq_len=10"), cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert re.search(r"\[(evaluation\.)?prompts\] prompt \d+ has \d+ tokens, more than the 2", done.stderr)
    assert "Traceback" not in done.stderr
