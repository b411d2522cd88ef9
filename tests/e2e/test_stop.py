"""Runs that are stopped by signals, or lose a process, on the tiny model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from titanrl.config import load
from titanrl.models import tiny
from titanrl.training.run import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
FILE = """
base = "{root}/experiments/algorithms/grpo.toml"
imports = ["{folder}/slow.py"]
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
name = "slow_letters"
[loop]
steps = 6
prompts_per_step = 4
samples_per_prompt = 4
[training]
seq_len = 64
mixed_precision_param = "float32"
[optimizer]
lr = 1e-2
[checkpoint]
interval = 4
[report]
tensorboard = false
"""
SLOW = """
import os, time, torch
from dataclasses import dataclass
from pathlib import Path
from titanrl import register

@register("reward", "slow_letters")
@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLetters:
    \"\"\"Fraction of distinct letters; from the third step on it can take long, or end the process.\"\"\"

    in_keys = (("text", "response"),)
    folder: str = ""

    def __call__(self, batch):
        folder = Path(self.folder)
        if self.folder and (folder / "runs/tiny/metrics.jsonl").read_text().count("reward/mean") >= 2:
            if (folder / "exit").exists():
                os._exit(0)
            if (folder / "slow").exists():
                (folder / f"scoring-{os.environ.get('RANK', '0')}").touch()
                time.sleep(60)
        texts = batch["text", "response"]
        return torch.tensor([len(set(text)) / max(len(text), 1) for text in texts])

@register("reward", "hanging")
@dataclass(frozen=True, slots=True, kw_only=True)
class Hanging:
    \"\"\"0 after a minute.\"\"\"

    in_keys = (("text", "response"),)

    def __call__(self, batch):
        Path(__file__).with_name("scoring-0").touch()
        time.sleep(60)
        return torch.zeros(len(batch))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an experiment of six steps."""
    tiny.create(tmp_path / "model", scale=0.3)
    prompts = [{"prompt": f"say {number}", "answer": str(number)} for number in range(7)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "temporary").mkdir()
    (tmp_path / "experiment.toml").write_text(FILE.format(root=ROOT, folder=tmp_path))
    return tmp_path


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts ``titanrl train``."""
    reward = f"--set=reward=[{{name='slow_letters', folder='{folder}'}}]"
    return command(folder, "train", str(folder / "experiment.toml"), reward, *arguments)


def command(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Starts a command of titanrl, whose temporary files go to a folder of their own."""
    return subprocess.Popen(
        [sys.executable, "-m", "titanrl", *words],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder / "temporary")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for(process: subprocess.Popen[str], *files: Path) -> None:
    limit = time.monotonic() + 120
    while not all(file.exists() for file in files):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def metrics(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]


def leftovers(folder: Path) -> list[str]:
    """Returns temporary files, without caches that torch keeps from run to run."""
    return [each.name for each in (folder / "temporary").iterdir() if "torchinductor" not in each.name]


def test_stopped_run_saves_and_resumes_to_the_metrics_of_a_whole_one(folder: Path) -> None:
    (folder / "slow").touch()
    process = start(folder)
    wait_for(process, folder / "scoring-0")
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert time.monotonic() - began < 45  # The reward would have taken 60 s.
    assert "SIGINT: stopping within 60 s; a second signal ends at once." in errors
    assert "2 of 6 steps are done, and step 3 was abandoned" in errors
    assert "the checkpoint of step 2 is saved" in errors
    assert re.search(r"continue with: titanrl train .* --resume\n", errors)
    assert leftovers(folder) == []
    (folder / "slow").unlink()
    resumed = start(folder, "--resume")
    _, errors = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, errors
    assert errors == ""
    train(load(folder / "experiment.toml", ["run.name=whole"]))
    assert metrics(folder, "tiny") == metrics(folder, "whole")


def test_process_that_user_code_ends_is_no_success(folder: Path) -> None:
    (folder / "exit").touch()
    process = start(folder)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 70
    assert (
        "ended with exit code 0, without finishing or reporting an error, in stage score of step 3" in errors
    )
    assert "continue with: titanrl train" in errors


@pytest.mark.distributed
def test_signal_to_one_rank_stops_all_at_the_same_step(folder: Path) -> None:
    (folder / "slow").touch()
    process = start(folder, "--nproc=2")
    wait_for(process, folder / "scoring-0", folder / "scoring-1")
    os.kill(children(process.pid)[1], signal.SIGUSR1)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert "stopped by SIGUSR1 on rank 1: 2 of 6 steps are done, and step 3 was abandoned" in errors
    assert [each.name for each in (folder / "runs/tiny/checkpoints").iterdir()] == ["step-2"]
    assert leftovers(folder) == []


@pytest.mark.distributed
def test_stopped_rank_ends_the_others_and_is_named(folder: Path) -> None:
    (folder / "slow").touch()
    process = start(folder, "--nproc=2", "--set=run.stall_seconds=5")
    wait_for(process, folder / "scoring-0", folder / "scoring-1")
    time.sleep(2)  # Until both have written the stage with a sign of life.
    ranks = children(process.pid)
    os.kill(ranks[0], signal.SIGSTOP)
    _, errors = process.communicate(timeout=50)  # Before the reward returns.
    assert process.returncode == 70, errors
    text = (
        rf"rank 0 on \S+ \(process {ranks[0]}\) has given no sign of life for \[run\] stall_seconds = 5, in"
    )
    assert re.search(rf"{text} stage score of step 3; this rank, 1, was in stage score of step 3", errors)
    assert "continue with: titanrl train" in errors
    assert "Traceback" not in errors
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)
    assert leftovers(folder) == []


@pytest.mark.parametrize("name", ["evaluate", "rft", "recipe", "ablate"])
def test_signal_ends_every_command_in_time(folder: Path, name: str) -> None:
    """A reward that hangs is abandoned, nothing is left behind, and the message says how to go on."""
    file = folder / "experiment.toml"
    text = file.read_text().replace("slow_letters", "hanging")
    text += f'[evaluation.prompts]\nname = "jsonl"\npath = "{folder}/prompts.jsonl"\n'
    text += "[rft]\nsamples_per_prompt = 2\n"
    file.write_text(text)
    (folder / "recipe.toml").write_text(f'[[stage]]\nname = "one"\ntrain = "{file}"\n')
    (folder / "ablation.toml").write_text(
        f'base = "{file}"\nseeds = 2\n[vary]\noptimizer.lr = [1e-3, 1e-2]\n'
    )
    words = {
        "evaluate": ["evaluate", str(file)],
        "rft": ["rft", str(file), "--output", str(folder / "rft")],
        "recipe": ["recipe", str(folder / "recipe.toml"), "--output", str(folder / "recipe")],
        "ablate": ["ablate", str(folder / "ablation.toml")],
    }
    process = command(folder, *words[name])
    wait_for(process, folder / "scoring-0")
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    _, errors = process.communicate(timeout=59)
    assert time.monotonic() - began < 45, errors
    assert process.returncode == 75, errors
    assert "Traceback" not in errors
    assert "SIGTERM: stopping within" in errors
    assert leftovers(folder) == []
