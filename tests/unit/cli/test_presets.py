"""``titanrl presets``."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from titanrl.cli import app
from titanrl.config.presets import preset_names

EXPERIMENTS = Path(__file__).parents[3] / "experiments"


def titanrl(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_presets_lists_each_with_its_summary_on_one_line() -> None:
    lines = titanrl("presets").output.splitlines()
    assert [line.split()[0] for line in lines] == preset_names()
    assert any(line.startswith("algorithms/grpo.toml") and "GRPO: " in line for line in lines)


def test_presets_prints_one_as_it_is() -> None:
    text = (EXPERIMENTS / "algorithms/dapo.toml").read_text()
    assert titanrl("presets", "algorithms/dapo.toml").output == text
    assert titanrl("presets", "titanrl:algorithms/dapo.toml").output == text


def test_presets_names_the_nearest_of_an_unknown_one() -> None:
    result = titanrl("presets", "algorithms/gpro.toml")
    assert result.exit_code == 2
    assert "did you mean 'titanrl:algorithms/grpo.toml'?" in result.output
