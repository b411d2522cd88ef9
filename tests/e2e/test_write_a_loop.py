"""docs/write-a-loop.md, done to the letter in a folder outside the repository."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import titanrl
from titanrl.models import tiny
from titanrl.registry import loops
from titanrl.training import step

PAGE = (Path(__file__).parents[2] / "docs" / "write-a-loop.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
MISTAKES = dict(re.findall(r"^\| (.*?)(?:: `.*?`)? \| `(\[loop\].*)` \|$", PAGE, flags=re.MULTILINE))
KIND = 'kind = "oversample"'
EDITS = {
    "a misspelled name": (KIND, 'kind = "oversampl"'),
    "`imports` is missing": ('imports = ["my_loop.py"]\n', ""),
    '`kind = "offline"` without `[data]`': (KIND, 'kind = "offline"'),
}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Writes the files of the page and the tiny model; forgets the page's loop afterwards."""
    for language, text in BLOCKS:
        if language in ("python", "toml"):
            (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text)
    tiny.create(tmp_path / "models" / "tiny")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = dict(loops._loops)
    yield tmp_path
    loops._loops.clear()
    loops._loops.update(known)
    sys.modules.pop("my_loop", None)


@pytest.mark.slow
def test_loop_on_the_page_trains_on_the_half_with_the_largest_spread(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Any] = []

    def optimize(session: Any, batch: Any, number: int, *, on_policy: bool, do: Any = step.optimize) -> Any:
        trained.append(batch)
        return do(session, batch, number, on_policy=on_policy)

    monkeypatch.setattr(step, "optimize", optimize)
    run = titanrl.train(titanrl.load("my_experiment.toml"))
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    spreads = [line["sample/spread_of_chosen"] for line in metrics if "sample/spread_of_chosen" in line]
    fractions = [line["advantage/frac_zero_std"] for line in metrics if "advantage/frac_zero_std" in line]
    assert len(spreads) == len(fractions) == 2
    for batch, spread, equal in zip(trained, spreads, fractions, strict=True):
        assert len(batch["group_id"].unique()) == 4
        assert spread == pytest.approx(min(1.0, 2 * (1 - equal))), "all mixed groups are trained on first"


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
