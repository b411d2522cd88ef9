"""Names -> component classes. A component registers itself on import; files are found by folder."""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
from collections.abc import Callable
from types import MappingProxyType
from typing import TypeVar

from titanrl.errors import ConfigError, did_you_mean
from titanrl.registry.declarations import check_class, with_article
from titanrl.registry.foreign_names import ALGORITHMS
from titanrl.registry.ranges import validated

__all__ = [
    "FOLDERS",
    "component_class",
    "kind_of",
    "kinds",
    "load",
    "load_entry_points",
    "name_of",
    "names",
    "register",
]

T = TypeVar("T")

FOLDERS = MappingProxyType(
    {
        "advantage": "advantages",
        "loss": "losses",
        "kl": "kl",
        "aggregation": "aggregations",
        "correction": "corrections",
        "filter": "filters",
        "kl_controller": "controllers",
        "reward": "rewards",
        "sampler": "samplers",
        "source": "sources",
        "environment": "environments",
        "tool": "tools",
    }
)
"""Each kind of component, and the folder of ``components/`` that holds the built-in ones."""

ENTRY_POINTS = "titanrl.components"
"""Entry-point group through which installed packages bring components of their own."""

RENAMED = MappingProxyType({("source", "reasoning_gym_answers"): "reasoning_gym_demonstrations"})
"""Kind and old name of a component -> its new name."""

_classes: dict[str, dict[str, type]] = {kind: {} for kind in FOLDERS}
_identity: dict[type, tuple[str, str]] = {}
_loaded: set[str] = set()


def register(kind: str, name: str) -> Callable[[type[T]], type[T]]:
    """Returns a decorator that files a dataclass under ``name`` among the components of ``kind``.

    Raises:
        ValueError: unknown kind, or the name is taken by another class.
        TypeError: the class is no dataclass, or declares something that its kind does not know.
    """
    if kind not in _classes:
        raise ValueError(
            f"unknown component kind {kind!r}{did_you_mean(kind, FOLDERS) or ';'} "
            f"kinds: {', '.join(FOLDERS)}."
        )

    def decorate(cls: type[T]) -> type[T]:
        check_class(kind, name, cls)
        if not cls.__module__.startswith("titanrl.components."):
            load(
                kind
            )  # So that a conflict with a built-in's name is reported here, for the conflicting class.
        taken = _classes[kind].get(name)
        if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
            owner = f"{taken.__module__}.{taken.__qualname__}"
            raise ValueError(f"{kind} {name!r} is already registered by {owner}; choose another name.")
        validated(cls)
        _classes[kind][name] = cls
        _identity[cls] = (kind, name)
        return cls

    return decorate


def kinds() -> tuple[str, ...]:
    """Returns the kinds of component, in the order in which a batch meets them in the documentation."""
    return tuple(FOLDERS)


def load(kind: str) -> None:
    """Imports every built-in component file of ``kind``, and once those of installed packages."""
    if kind not in FOLDERS:
        raise ConfigError(
            f"unknown component kind {kind!r}{did_you_mean(kind, FOLDERS) or ';'} "
            f"kinds: {', '.join(FOLDERS)}."
        )
    if kind not in _loaded:
        package = importlib.import_module(f"titanrl.components.{FOLDERS[kind]}")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")
        _loaded.add(kind)  # only now: a file that fails to import must say so at every look-up
    load_entry_points()


def load_entry_points() -> None:
    """Imports the modules of installed packages that bring components or model families, once."""
    if ENTRY_POINTS not in _loaded:
        _loaded.add(ENTRY_POINTS)
        for entry_point in importlib.metadata.entry_points(group=ENTRY_POINTS):
            try:
                entry_point.load()
            except Exception as error:  # Whatever it raises, the message must name the package.
                raise ConfigError(
                    f"entry point {entry_point.name!r} ({entry_point.value}) failed with "
                    f"{type(error).__name__}: {error}; fix or uninstall its package."
                ) from error


def names(kind: str) -> list[str]:
    """Returns the registered names of ``kind``, sorted."""
    load(kind)
    return sorted(_classes[kind])


def component_class(kind: str, name: str) -> type:
    """Returns the class registered under ``name``.

    Raises:
        ConfigError: no component of that kind has the name; the message holds the nearest one.
    """
    load(kind)
    try:
        return _classes[kind][name]
    except (KeyError, TypeError):
        raise ConfigError(unknown_name(kind, name, f"unknown {kind}")) from None


def unknown_name(kind: str, name: object, wrong: str) -> str:
    """Returns the message about a name that no component of ``kind`` has, with what may be meant.

    Args:
        kind: of the component.
        name: the name as given.
        wrong: how the message begins, before the name.
    """
    known = f"known: {', '.join(names(kind)) or 'none'}."
    if new := RENAMED.get((kind, str(name))):
        return f"{wrong} {name!r}, which was renamed to {new!r}."
    others = [each for each in FOLDERS if each != kind and name in names(each)]
    hints = [f"it is {with_article(others[0])}"] if others else []
    if kind in ("loss", "advantage") and name in ALGORITHMS:
        hints.append(f'the whole algorithm is base = "titanrl:algorithms/{name}.toml"')
    meant = f"; {', and '.join(hints)}" if hints else ""
    return f"{wrong} {name!r}{meant}{did_you_mean(str(name), names(kind)) or ';'} {known}"


def kind_of(component: object) -> str:
    """Returns the kind under which the component's class is registered."""
    return _identity[type(component)][0]


def name_of(component: object) -> str:
    """Returns the registered name of a component, as written in a TOML file."""
    return _identity[type(component)][1]
