"""The ``imports`` of an experiment file: modules and files that register components of the user's own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from titanrl.errors import ConfigError, Problem

__all__ = ["import_all"]


def import_all(imports: Any) -> None:
    """Imports each module name (also from the working directory) and each path of a .py file, once.

    Raises:
        ConfigError: one cannot be imported, or registers a name that is taken.
    """
    if not isinstance(imports, list | tuple) or not all(isinstance(name, str) for name in imports):
        return  # Decoding the key says what it must be.
    problems: list[Problem] = []
    for name in imports:
        try:
            _file(Path(name)) if name.endswith(".py") else _module(name)
        except ConfigError as error:
            problems += error.problems
        except Exception as error:  # Whatever a user's file raises is a mistake of the experiment.
            text = (
                f"of {name!r} failed with {type(error).__name__}: {str(error).rstrip('.')}; fix or remove it."
            )
            problems.append(Problem("", text, "imports"))
    if problems:
        raise ConfigError(problems)


def _module(name: str) -> None:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    importlib.import_module(name)


def _file(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(Problem("", f"names no file, got {str(path)!r}.", "imports"))
    path = path.resolve()
    loaded = sys.modules.get(path.stem)
    if loaded is not None:
        if getattr(loaded, "__file__", None) and Path(str(loaded.__file__)).resolve() == path:
            return
        raise ConfigError(
            Problem(
                "", f"of {str(path)!r} clashes with the module {path.stem!r}; rename the file.", "imports"
            )
        )
    # The folder joins the path so that worker processes can import the module by its name too.
    sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
