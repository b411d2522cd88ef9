"""Golden cases: conversion from JSON to tables, batches and policy outputs, and comparison of results."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import titanrl
from titanrl import PolicyOutputs
from titanrl.registry import component_class
from titanrl.registry.decode import fields_of

FOLDER = Path(__file__).parent
DTYPES = {
    "loss_mask": torch.bool,
    "group_id": torch.int64,
    "labels": torch.int64,
    "agent_id": torch.int64,
    "prompt_id": torch.int64,
    "episode_id": torch.int64,
    "turn_id": torch.int64,
    "state_id": torch.int64,
    "input_length": torch.int64,
    "num_turns": torch.int64,
    "policy_version_token": torch.int32,
    "current_version": torch.int32,
    "finish_reason": torch.int8,
}
"""Batch keys that are not float32."""


def load(kind: str) -> list[dict[str, Any]]:
    """Return the cases of a kind in file order, except planned ones whose component does not exist yet."""
    return [case for case in _read(kind) if not _is_missing(case)]


def missing(kind: str) -> list[dict[str, Any]]:
    """Return the planned cases of a kind whose component or field does not exist yet."""
    return [case for case in _read(kind) if _is_missing(case)]


def _read(kind: str) -> list[dict[str, Any]]:
    return json.loads((FOLDER / f"{kind}.json").read_text())


def _is_missing(case: dict[str, Any]) -> bool:
    if not case.get("planned"):
        return False
    kind, name = case["kind"], case["table"]["name"]
    if name not in titanrl.names(kind):
        return True
    # A table that must be refused may have an unknown key; ``valid`` is one that must not be refused.
    settings = case.get("valid", {}) if "error" in case["expect"] else case["table"]
    return not set(settings) - {"name"} <= set(fields_of(component_class(kind, name)))


def ids(cases: list[dict[str, Any]]) -> list[str]:
    return [case["id"] for case in cases]


def table(case: dict[str, Any]) -> dict[str, Any]:
    """Returns the component's TOML table; the strings "inf" and "-inf" become numbers."""
    numbers = {"inf": math.inf, "-inf": -math.inf}
    return {
        key: numbers.get(value, value) if isinstance(value, str) else value
        for key, value in case["table"].items()
    }


def tensor(value: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns nested lists as a tensor; null becomes NaN."""

    def numbers(x: Any) -> Any:
        return [numbers(item) for item in x] if isinstance(x, list) else math.nan if x is None else x

    return torch.tensor(numbers(value), dtype=dtype)


def batch(case: dict[str, Any]) -> TensorDict:
    """Returns the case's batch as a stage would hand it over."""
    entries: dict[Any, Any] = {}
    for key, value in case["batch"].items():
        if key == "text":
            entries |= {("text", name): list(strings) for name, strings in value.items()}
        elif key == "rewards":
            entries |= {("rewards", name): tensor(numbers) for name, numbers in value.items()}
        else:
            entries[key] = tensor(value, DTYPES.get(key, torch.float32))
    rows = len(next(iter(case["batch"].values())))
    result = TensorDict({}, batch_size=[rows])
    for key, value in entries.items():
        if isinstance(value, list):
            result.set_non_tensor(key, value)
        else:
            result.set(key, value)
    return result


def policy(case: dict[str, Any]) -> PolicyOutputs:
    """Returns the head's outputs, each a leaf that asks for its gradient."""
    return PolicyOutputs(**{name: tensor(value).requires_grad_() for name, value in case["policy"].items()})


def assert_refused(case: dict[str, Any]) -> None:
    """Fail unless ``build`` refuses the case's table with the expected words, and accepts its valid table."""
    if "valid" in case:
        titanrl.build(case["kind"], case["valid"])
    with pytest.raises(titanrl.ConfigError) as caught:
        titanrl.build(case["kind"], table(case))
    assert all(word in str(caught.value) for word in case["expect"]["mentions"])


def assert_close(got: torch.Tensor, expected: torch.Tensor, tolerance: float, what: str) -> None:
    """Fails unless ``|got - expected| <= tolerance * (1 + |expected|)`` everywhere."""
    off = (got.double() - expected.double()).abs() - tolerance * (1 + expected.double().abs())
    assert bool((off <= 0).all()), f"{what}: got {got.tolist()}, expected {expected.tolist()}"
