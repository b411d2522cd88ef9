"""Experiments on presets, trained in this process on the tiny model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from titanrl.config import load
from titanrl.models import tiny
from titanrl.training import run
from titanrl.training.run import train as run_training

ROOT = Path(__file__).parents[2]
SIZES = """
base = "{root}/experiments/algorithms/{preset}.toml"
[run]
folder = "{folder}/runs"
[model]
path = "{folder}/model"
[loop]
steps = 5
prompts_per_step = 4
[training]
seq_len = 256
mixed_precision_param = "float32"
[checkpoint]
enable = false
[report]
tensorboard = false
progress = false
"""
PROMPTS = """
[prompts]
name = "jsonl"
path = "{folder}/prompts.jsonl"
[sampler]
name = "torch"
max_response_tokens = 8
"""
REWARDS = """
[[reward]]
name = "format_regex"
pattern = '[^0-9]*'
label = "no_digit"
[[reward]]
name = "repetition"
n = 1
"""
TEACHER = """
[teacher]
path = "{folder}/teacher"
"""


def data(format: str) -> str:
    """Returns the table of the small file with examples of a format."""
    file = "unpaired" if format == "prompt_completion" else format
    path = f"{{root}}/tests/experiments/data/{file}.jsonl"
    return f'[data]\nname = "dataset"\nformat = "{format}"\npath = "{path}"\n'


class Trained(NamedTuple):
    """What a run left."""

    steps: list[dict[str, float]]
    """Metrics of each step."""
    before: dict[str, torch.Tensor]
    """The policy's weights at the start."""
    after: dict[str, torch.Tensor]
    session: Any


Write = Callable[..., Path]
Train = Callable[..., Trained]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny model, another one as a teacher, and a few prompts."""
    folder = tmp_path_factory.mktemp("presets")
    tiny.create(folder / "model", scale=0.3)
    tiny.create(folder / "teacher", layers=1, hidden=16, scale=0.3, seed=1)
    prompts = [{"prompt": f"say {number}", "answer": str(number)} for number in range(7)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, and no curves: drawing them takes longer than the training."""
    threads = torch.get_num_threads()
    monkeypatch.setattr("titanrl.engine.set_threads", lambda: torch.set_num_threads(1))
    monkeypatch.setattr("titanrl.report.recorder.plot", lambda *_: None)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def write(folder: Path) -> Write:
    """Returns a function that writes an experiment on a preset: small sizes, and what else it is to say."""

    def write(preset: str, adds: str = PROMPTS + REWARDS) -> Path:
        path = folder / f"{preset}.toml"
        path.write_text((SIZES + adds).format(root=ROOT, preset=preset, folder=folder))
        return path

    return write


@pytest.fixture
def train(write: Write, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Returns a function that trains such an experiment for five steps."""

    def train(preset: str, adds: str = PROMPTS + REWARDS, overrides: Sequence[str] = ()) -> Trained:
        sessions: list[Any] = []
        before: dict[str, torch.Tensor] = {}
        open_session = run.open_session

        def opened(*arguments: Any, **options: Any) -> Any:
            session = open_session(*arguments, **options)
            sessions.append(session)
            before.update({name: value.clone() for name, value in session.engine.weights()})
            return session

        with monkeypatch.context() as patch:
            patch.setattr(run, "open_session", opened)
            folder = run_training(load(write(preset, adds), overrides))
        steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return Trained(steps, before, dict(sessions[0].engine.weights()), sessions[0])

    return train
