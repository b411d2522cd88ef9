"""docs/write-an-environment.md, done to the letter in a folder outside the repository."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import titanrl
from titanrl.models import tiny
from titanrl.registry import catalog

PAGE = (Path(__file__).parents[2] / "docs" / "write-an-environment.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
MISTAKES = dict(re.findall(r"^\| (.*?)(?:: `.*?`)? \| `(\[.*)` \|$", PAGE, flags=re.MULTILINE))
TABLE = '[environment]\nname = "countdown"\nmax_turns = 4\n'
EDITS = {
    "a misspelled name": ('name = "countdown"', 'name = "countdwon"'),
    "no `[environment]`, but its reward": (TABLE, ""),
    '`name = "dpo"` as the loss': ("[loop]", '[algorithm.loss]\nname = "dpo"\n\n[loop]'),
}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Writes the files of the page and the tiny model; forgets the page's environment afterwards."""
    for language, text in BLOCKS:
        if language in ("python", "toml"):
            (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text)
    tiny.create(tmp_path / "models" / "tiny")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    catalog._classes["environment"].pop("countdown", None)
    sys.modules.pop("my_game", None)


def test_environment_on_the_page_trains(lab: Path) -> None:
    run = titanrl.train(titanrl.load("my_experiment.toml"))
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in metrics if "environment/turns" in line]
    assert len(steps) == 2
    for line in steps:
        assert 1 <= line["environment/turns"] <= 4
        assert line["environment/failed_fraction"] == 0
        assert line["reward/environment"] == pytest.approx(line["environment/good_numbers"] / 10)
        assert line["sample/logprob_diff"] < 1e-4
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    roles = [message["role"] for message in samples[0]["transcript"]]
    assert roles[:3] == ["user", "user", "assistant"]


def test_every_error_on_the_page_is_tested() -> None:
    assert set(MISTAKES) == set(EDITS)


@pytest.mark.parametrize("mistake", EDITS)
def test_errors_equal_those_on_the_page(lab: Path, mistake: str) -> None:
    before, after = EDITS[mistake]
    text = (lab / "my_experiment.toml").read_text()
    assert before in text
    (lab / "my_experiment.toml").write_text(text.replace(before, after))
    with pytest.raises(titanrl.ConfigError) as caught:
        titanrl.load("my_experiment.toml")
    assert MISTAKES[mistake] in str(caught.value)
