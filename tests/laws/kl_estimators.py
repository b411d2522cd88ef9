"""Every KL estimator as its laws build it, one of the user's own too, which may have no keys at all."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import titanrl
from titanrl.registry import component_class

NAMES = titanrl.names("kl")
GRADIENTS = ("pathwise", "straight_through_k2")


def keys(name: str) -> set[str]:
    """Returns the keys of an estimator's table."""
    return {field.name for field in dataclasses.fields(component_class("kl", name)) if field.init}


def gradients(name: str) -> tuple[str, ...]:
    """Returns the gradients among which an estimator's table chooses; without the key its own one."""
    return GRADIENTS if "gradient" in keys(name) else GRADIENTS[:1]


every_gradient = pytest.mark.parametrize(
    ("name", "gradient"), [(name, gradient) for name in NAMES for gradient in gradients(name)]
)


def build(name: str, gradient: str = "pathwise", **fields: float) -> Any:
    """Returns the estimator, without the keys that it has not."""
    table = {"gradient": gradient, **fields}
    return titanrl.build("kl", {"name": name, **{key: table[key] for key in keys(name) & table.keys()}})
