"""docs/experiment-files.md shows an experiment that loads, and messages that are really given."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.config.conftest import Write
from titanrl.config import load
from titanrl.errors import ConfigError
from titanrl.registry import name_of

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "experiment-files.md").read_text()

MY_LOSS = """
from dataclasses import dataclass
from titanrl import register

@register("loss", "my_loss")
@dataclass(frozen=True, slots=True, kw_only=True)
class MyLoss:
    width: float = 1.0
    in_keys = ("advantage",)
"""


def test_example_on_the_config_page_is_valid(write: Write) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    write(MY_LOSS, "my_losses.py")
    experiment = load(write(text.replace('"algorithms/', f'"{ROOT}/experiments/algorithms/')))
    assert name_of(experiment.algorithm.loss) == "my_loss"
    assert experiment.algorithm.kl is None
    assert experiment.loop.samples_per_prompt == 8


def test_messages_on_the_config_page_are_real(write: Write) -> None:
    shown = PAGE.partition("my.toml: 2 mistakes\n")[2].partition("```")[0].split("...\n")[:2]
    text = f'base = "{ROOT}/experiments/tiny_grpo.toml"\n'
    mistakes = ("[algorithm.loss]\nclip_hig = 0.3\n", "[loop]\nsamples_per_prompt = 1\n")
    for mistake, beginning in zip(mistakes, shown, strict=True):
        with pytest.raises(ConfigError) as caught:
            load(write(text + mistake))
        assert str(caught.value).splitlines()[1].startswith(beginning)
