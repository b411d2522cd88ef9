"""Variants as names and overrides."""

from __future__ import annotations

from typing import Any

import pytest
import tomli

from titanrl.ablation.variants import Variant, variants
from titanrl.errors import ConfigError


def grid(text: str) -> tuple[Variant, ...]:
    return variants(tomli.loads(text), None)


def named(text: str) -> tuple[Variant, ...]:
    return variants(None, tomli.loads(text)["variant"])


def test_grid_is_every_combination_with_short_names() -> None:
    parsed = grid('algorithm.loss.clip_high = [0.2, 0.28]\n"optimizer.lr" = [1e-5, 1e-4, 1e-3]')
    assert len(parsed) == 6
    assert parsed[1] == Variant(
        "clip_high=0.2,lr=0.0001", ("algorithm.loss.clip_high=0.2", "optimizer.lr=0.0001")
    )


def test_keys_with_the_same_end_are_named_in_full() -> None:
    parsed = grid("optimizer.lr = [1, 2]\ncritic.optimizer.lr = [3, 4]")
    assert parsed[0].name == "optimizer.lr=1,critic.optimizer.lr=3"


def test_axis_with_one_value_is_set_and_not_in_the_name() -> None:
    parsed = grid("optimizer.lr = [1, 2]\nloop.steps = [3]")
    assert parsed[1] == Variant("lr=2", ("optimizer.lr=2", "loop.steps=3"))


def test_component_tables_are_values() -> None:
    parsed = grid('algorithm.loss = [{ name = "gspo" }, { name = "ppo_clip", clip_high = 0.28 }]')
    assert [each.name for each in parsed] == ["loss=gspo", "loss=ppo_clip(clip_high=0.28)"]
    assert parsed[1].overrides == ('algorithm.loss={name = "ppo_clip", clip_high = 0.28}',)
    assert parsed[1].folder_name == "loss=ppo_clip_clip_high=0.28"


def test_named_variants_are_partial_experiment_files() -> None:
    parsed = named("""
        [[variant]]
        name = "plain"
        [[variant]]
        name = "other"
        drop = ["algorithm.kl", "reference"]
        algorithm.loss.clip_high = inf
        algorithm.filter = [{ name = "zero_variance" }]
        algorithm.advantage = { name = "grpo", std = "none" }
        critic = {}
    """)
    assert parsed[0] == Variant("plain", ())
    assert parsed[1].overrides == (
        "algorithm.kl=",
        "reference=",
        "algorithm.loss.clip_high=inf",
        'algorithm.filter=[{name = "zero_variance"}]',
        'algorithm.advantage={name = "grpo", std = "none"}',
        "critic={}",
    )


@pytest.mark.parametrize(
    "value", ['"a \\"quoted\\" word"', "1e-06", "true", "-inf", '["x", "y"]', '{a = 1, "b c" = [2.5]}']
)
def test_values_survive_as_toml_on_one_line(value: str) -> None:
    parsed = grid(f"model.path = [{value}, 0]")
    _, _, text = parsed[0].overrides[0].partition("=")
    assert "\n" not in text
    assert tomli.loads(f"value = {text}") == tomli.loads(f"value = {value}")


@pytest.mark.parametrize(
    ("vary", "variant", "message"),
    [
        (None, None, "must define the variants, got neither"),
        ({"a": [1, 2]}, [{"name": "x"}], "must define the variants, got both"),
        ({"loop": {"steps": 3}}, None, r"\[vary\] loop.steps must be an array .* got 3"),
        ({"loop": {"steps": []}}, None, r"\[vary\] loop.steps must be an array"),
        ({"loop": {"steps": [3]}}, None, "vary must define at least 2 variants, got 1"),
        ([1], None, "vary must be a table"),
        (None, {"name": "x"}, "variant must be an array of tables"),
        (None, [{"name": "x"}, {"loop": {}}], r"\[variant.1\] name must be a string, got None"),
        (None, [{"name": "x", "drop": "y"}, {"name": "z"}], r"\[variant.0\] drop must be an array of keys"),
        (None, [{"name": "a/b"}, {"name": "a_b"}], "names that differ .* got 'a/b' and 'a_b'"),
        (None, [{"name": "x"}, {"name": "x"}], "names that differ"),
        ({"run": {"seed": [1, 2]}}, None, "run must not be varied, got 'run.seed'"),
    ],
)
def test_invalid_variants_are_reported(vary: Any, variant: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        variants(vary, variant)
