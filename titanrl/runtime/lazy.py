"""A placeholder for the module torch that imports it on first access.

Component files import torch at the top, which takes seconds, and commands that only read settings never use a
tensor. With the placeholder, ``import torch`` costs nothing until an attribute is read.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

__all__ = ["lazy_torch"]


class _Lazy(ModuleType):
    # importlib.util.LazyLoader does not work here: it loads on any attribute, and Python 3.11 reads __spec__
    # of the entry in sys.modules at every import statement.
    def __getattr__(self, name: str) -> Any:
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        self.__path__ = list(spec.submodule_search_locations or [])
        spec.loader.exec_module(self)
        return getattr(self, name)


def lazy_torch() -> None:
    """Make ``import torch`` lazy in this process; do nothing if torch is loaded or not installed."""
    if "torch" in sys.modules:
        return
    spec = importlib.util.find_spec("torch")
    if spec is None:
        return
    module = importlib.util.module_from_spec(spec)
    del module.__path__  # Importing a submodule then loads torch first.
    module.__class__ = _Lazy
    sys.modules["torch"] = module
