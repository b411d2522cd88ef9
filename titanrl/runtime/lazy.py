"""A stand-in for torch that becomes torch when something is read from it.

Component files import torch at the top, and importing it takes seconds; commands that only read settings
never touch a tensor. With the stand-in in place ``import torch`` is free until then.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

__all__ = ["lazy_torch"]


class _Lazy(ModuleType):
    # importlib.util.LazyLoader would not do: any attribute wakes its modules, and Python 3.11 reads __spec__
    # of what stands in sys.modules at every import statement.
    def __getattr__(self, name: str) -> Any:
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        self.__path__ = list(spec.submodule_search_locations or [])
        spec.loader.exec_module(self)
        return getattr(self, name)


def lazy_torch() -> None:
    """Makes ``import torch`` lazy in this process; does nothing where torch is loaded or not installed."""
    if "torch" in sys.modules:
        return
    spec = importlib.util.find_spec("torch")
    if spec is None:
        return
    module = importlib.util.module_from_spec(spec)
    del module.__path__  # So that importing a submodule wakes torch first.
    module.__class__ = _Lazy
    sys.modules["torch"] = module
