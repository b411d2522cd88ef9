"""Training loops by name: [loop] kind chooses one of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, TypeVar

from titanrl.errors import ConfigError, did_you_mean

__all__ = ["loop_names", "register_loop", "training_loop"]

BUILT_IN = MappingProxyType({"online": "titanrl.training.online", "offline": "titanrl.training.offline"})
"""Loops that titanrl brings, and their modules, which import torch and are imported when they are used."""

F = TypeVar("F", bound=Callable[[], Any])

_loops: dict[str, Callable[[], Any]] = {}


def register_loop(name: str) -> Callable[[F], F]:
    """Returns a decorator that registers a training loop for ``[loop] kind``.

    The decorated function takes nothing and returns a ``titanrl.training.run.TrainLoop``. It is called when a
    run starts, so that a file of ``imports`` needs to import ``titanrl.training`` only inside the function.

    Args:
        name: value of ``[loop] kind``; not a built-in name.

    Raises:
        ValueError: the name is taken by another function.
    """

    def decorate(function: F) -> F:
        known = _loops.get(name)
        is_same = known is not None and (known.__module__, known.__qualname__) == (
            function.__module__,
            function.__qualname__,
        )
        owner = BUILT_IN.get(name) if known is None else f"{known.__module__}.{known.__qualname__}"
        if owner is not None and owner != function.__module__ and not is_same:
            raise ValueError(f"loop {name!r} is already registered by {owner}; choose another name.")
        _loops[name] = function
        return function

    return decorate


def loop_names() -> list[str]:
    """Returns the names that ``[loop] kind`` may have, sorted."""
    return sorted({*BUILT_IN, *_loops})


def training_loop(name: str) -> Any:
    """Returns the ``TrainLoop`` registered under ``name``.

    Raises:
        ConfigError: no loop has the name; the message holds the nearest one.
    """
    if name in BUILT_IN:
        importlib.import_module(BUILT_IN[name])
    if name not in _loops:
        raise ConfigError(
            f"[loop] kind must be one of {', '.join(loop_names())}, got {name!r}"
            f"{did_you_mean(name, loop_names()) or '.'}"
        )
    return _loops[name]()
