"""The JSON Schema of experiment files says what the loader says."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest
import tomli

from tests.unit.config.test_typos import EXPERIMENTS, WHOLE
from titanrl.config import load, to_table
from titanrl.config.json_schema import file_schema
from titanrl.registry import names

SCHEMA = file_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


@pytest.mark.slow
def test_schema_is_valid_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


SEVERAL = {"ablations", "recipes"}
"""Folders whose files are several experiments and none themselves."""


@pytest.mark.parametrize(
    "path",
    sorted(path for path in EXPERIMENTS.rglob("*.toml") if path.parent.name not in SEVERAL),
    ids=lambda path: path.stem,
)
def test_shipped_files_follow_the_schema(path: Any) -> None:
    VALIDATOR.validate(tomli.loads(path.read_text()))


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_resolved_files_follow_the_schema(path: Any) -> None:
    VALIDATOR.validate(to_table(load(path)))


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("loop", "stesp", 3),
        ("loop", "steps", "3"),
        ("training", "dtype", "float8"),
        ("sampler", "name", "no_such_sampler"),
        ("algorithm", "loss", {"name": "ppo_clip", "tau": 1.0}),
        ("algorithm", "kl", {"name": "k3", "coefficient": 0.1, "placement": "nowhere"}),
        ("optimizer", "lr", True),
    ],
)
def test_schema_refuses_files_that_the_loader_refuses(table: str, key: str, value: object) -> None:
    wrong: dict[str, Any] = copy.deepcopy(to_table(load(EXPERIMENTS / "tiny_grpo.toml")))
    wrong[table][key] = value
    assert not VALIDATOR.is_valid(wrong)


def test_schema_offers_every_registered_loss_with_its_documentation() -> None:
    losses = SCHEMA["properties"]["algorithm"]["properties"]["loss"]["oneOf"]
    offered = {option["properties"]["name"]["const"]: option for option in losses if "properties" in option}
    assert set(names("loss")) == offered.keys()
    assert "1707.06347" in offered["ppo_clip"]["description"]
    assert offered["ppo_clip"]["properties"]["clip_high"]["default"] == 0.2
    assert "description" in offered["ppo_clip"]["properties"]["clip_high"]
