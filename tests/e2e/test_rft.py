"""Rejection sampling on the tiny model, through the front door: whole, broken off, on two processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_training import FILE, ROOT, file, lines
from titanrl.components.sources.dataset import Dataset
from titanrl.config import Experiment, load
from titanrl.errors import ConfigError
from titanrl.rollout import rejection_sampling

__all__ = ["FILE", "file"]

NAMES = ("responses.jsonl", "prompts.jsonl", "statistics.json")


def asked(file: Path, *overrides: str) -> Experiment:
    """Three answers to each of seven prompts, in batches of two; most are cut at eight tokens."""
    sizes = ("rft.samples_per_prompt=3", "rft.prompts_per_batch=2")
    settings = (*sizes, "rft.include_truncated=true", *overrides)
    return load(file, ["report.progress=false", "rft.max_per_prompt=2", *settings])


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.name in NAMES}


def test_written_responses_are_readable_by_the_dataset_source(file, tmp_path):
    path = rejection_sampling.collect(asked(file), tmp_path / "data")
    rows, prompts = lines(path.parent, path.name), lines(path.parent, "prompts.jsonl")
    assert [line["prompt_index"] for line in prompts] == list(range(7))
    assert [row["prompt_index"] for row in rows] == sorted(2 * list(range(7)))
    examples = Dataset(path=str(path), format="prompt_completion").open()
    assert [(row.prompt, row.response) for (row,) in (examples[i] for i in range(14))] == [
        (f"say {row['prompt_index']}", row["completion"]) for row in rows
    ]
    sums = json.loads((path.parent / "statistics.json").read_text())
    assert (sums["prompts"], sums["answers"], sums["rows"]) == (7, 21, 14)
    assert sums["dropped"] == {"surplus": 7}
    assert -1 < sums["reward_mean"] < 0
    assert sums["reward_repetition_mean"] == pytest.approx(sums["reward_mean"])
    # Of each three answers the best two, the better one first.
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        assert first["reward"] >= second["reward"]


def test_pairs_have_the_better_response_first(file, tmp_path):
    experiment = asked(file, "rft.max_per_prompt=1", "rft.write=pairs")
    path = rejection_sampling.collect(experiment, tmp_path / "pairs")
    examples = Dataset(path=str(path), format="preference").open()
    rows = lines(path.parent, path.name)
    assert len(examples) == len(rows) >= 5
    for row, (chosen, rejected) in zip(rows, (examples[index] for index in range(len(rows))), strict=True):
        assert (chosen.prompt, chosen.response) == (row["prompt"], row["chosen"])
        assert (rejected.prompt, rejected.response) == (row["prompt"], row["rejected"])
        assert chosen.scalars["margin"] == row["chosen_reward"] - row["rejected_reward"] > 0


def test_interrupted_and_repeated_run_writes_the_same_files(file, tmp_path, monkeypatch):
    whole = texts(rejection_sampling.collect(asked(file), tmp_path / "whole").parent)
    original, calls = rejection_sampling.generate_and_score, []

    def broken(*arguments: Any, **settings: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*arguments, **settings)

    monkeypatch.setattr(rejection_sampling, "generate_and_score", broken)
    folder = tmp_path / "data"
    with pytest.raises(KeyboardInterrupt):
        rejection_sampling.collect(asked(file), folder)
    assert len(lines(folder, "prompts.jsonl")) == 2
    # As a kill leaves it: the rows of a prompt that isn't finished, and half a line.
    with (folder / "responses.jsonl").open("a") as rows:
        rows.write('{"prompt_index": 2, "prompt": "say 2", "completion": "stale"}\n{"prompt_index": 3, "pro')
    with (folder / "prompts.jsonl").open("a") as prompts:
        prompts.write('{"prompt_ind')
    rejection_sampling.collect(asked(file), folder)
    assert texts(folder) == whole
    # What is finished is not sampled again.
    count = len(calls)
    rejection_sampling.collect(asked(file), folder)
    assert len(calls) == count
    config = folder / "experiment.toml"
    kept = [each for each in config.read_text().splitlines() if not each.startswith("max_resample_attempts")]
    config.write_text("\n".join(["# Begun before there was another key.", *kept]))
    rejection_sampling.collect(asked(file), folder)
    with pytest.raises(ConfigError, match=r"begun with other values of rft\.min_reward; name a new folder"):
        rejection_sampling.collect(asked(file, "rft.min_reward=-0.5"), folder)


def test_foreign_output_folder_and_too_many_prompts_are_refused(file, tmp_path):
    with pytest.raises(
        ConfigError, match=r"--output must name a new folder, got '.*', which holds other files"
    ):
        rejection_sampling.collect(asked(file), tmp_path / "model")
    with pytest.raises(ConfigError, match=r"\[rft\] num_prompts must be <= 7, the size of the source, got 8"):
        rejection_sampling.collect(asked(file, "rft.num_prompts=8"), tmp_path / "data")
    with pytest.raises(ConfigError, match=r"\[rft\] is missing; add it"):
        rejection_sampling.collect(load(file), tmp_path / "data")


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_write_the_same_file_as_one(file, tmp_path):
    one = texts(rejection_sampling.collect(asked(file), tmp_path / "one").parent)
    sizes = ("rft.samples_per_prompt=3", "rft.prompts_per_batch=2", "rft.max_per_prompt=2")
    overrides = (*sizes, "rft.include_truncated=true")
    command = [
        sys.executable,
        "-m",
        "titanrl",
        "rft",
        str(file),
        "--output",
        str(tmp_path / "two"),
        "--nproc=2",
    ]
    done = subprocess.run(
        [*command, *(f"--set={each}" for each in overrides)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert texts(tmp_path / "two") == one
