"""docs/algorithms.md says what the presets say."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.config.conftest import Write
from titanrl.config import load
from tools.algorithm_page import algorithm_page

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "algorithms.md"
PRESETS = ROOT / "experiments" / "algorithms"

DERIVED = """# Mine: no better.
# Source: arXiv 2401.00001; 2402.00002. Deviation: all.

base = "base.toml"

[algorithm.loss]
clip_high = 1e-3
"""
BASE = """# Base: what others build on.
# Source: arXiv 2403.00003.
# An experiment states [teacher] path,
# and trains on [data].
# More that is of no concern.

[algorithm.loss]
name = "ppo_clip"

[algorithm.kl]
name = "k1"
placement = "reward"
coefficient = 0.5

[optimizer]
lr = 1e-6
"""


def test_page_is_that_of_the_presets() -> None:
    assert PAGE.read_text() == algorithm_page(PRESETS), "docs/algorithms.md is stale; run `make docs`"


def test_page_has_a_row_a_preset_and_its_links_lead_somewhere() -> None:
    text = PAGE.read_text()
    rows = re.findall(r"^\| \[`(\w+)`\]", text, flags=re.MULTILINE)
    assert sorted(rows) == sorted(path.stem for path in PRESETS.glob("*.toml"))
    for target, anchor in re.findall(r"\]\((?!https:)([^)#]*)(?:#(\w+))?\)", text):
        page = PAGE.parent / target
        assert page.exists(), target
        assert not anchor or f"## `{anchor}`" in page.read_text(), anchor


def test_example_of_the_page_is_an_experiment(write: Write) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    load(write(example.replace('"algorithms/', f'"{PRESETS}/')))


def test_row_tells_parts_that_are_set_and_what_the_base_asks_for(write: Write, tmp_path: Path) -> None:
    write(BASE, "base.toml")
    write(DERIVED, "mine.toml")
    row = next(line for line in algorithm_page(tmp_path).splitlines() if line.startswith("| [`mine`]"))
    cells = row.strip("| ").split(" | ")
    assert cells[1] == (
        "Mine: no better. [2401.00001](https://arxiv.org/abs/2401.00001), "
        "[2402.00002](https://arxiv.org/abs/2402.00002). "
        "An experiment states [teacher] path, and trains on [data]."
    )
    assert cells[2] == (
        "[ppo_clip](components/loss.md#ppo_clip) (clip_high 0.001); "
        "[k1](components/kl.md#k1) in the reward, 0.5; lr 1e-6"
    )
