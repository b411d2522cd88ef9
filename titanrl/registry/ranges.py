"""Ranges of fields: declared in the field's type, checked whenever an object is constructed."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from numbers import Integral, Real
from typing import Any, TypeVar, cast, get_args, get_type_hints

from titanrl.errors import ConfigError, Problem

__all__ = ["Range", "range_of", "range_problems", "ranges_of", "validated"]

T = TypeVar("T")

MAX_INT = 2**31 - 1
MAX_FLOAT = 1e38


@dataclass(frozen=True, slots=True)
class Range:
    """The interval of a field's values: ``clip_low: Annotated[float, Range("(0, 1)")] = 0.2``.

    A round bracket excludes its bound, a square bracket includes it. A bound is a number, ``inf``, the name
    of another field, or a sum of these: ``"[1, max_length]"``, ``"(1 + clip_high, inf)"``. None passes,
    because it switches an option off; NaN never passes. In a tuple, list or dict each value must be in the
    interval.

    Raises:
        ValueError: the text is not an interval.
    """

    interval: str

    def __post_init__(self) -> None:
        brackets = self.interval[:1] in ("(", "[") and self.interval[-1:] in (")", "]")
        if not brackets or self.interval.count(",") != 1:
            raise ValueError(f"a range must look like '[0, 1)', got {self.interval!r}.")
        for term in self.names:
            if not term.isidentifier():
                raise ValueError(f"a bound must be a number or a field's name, got {self.interval!r}.")

    def __str__(self) -> str:
        return self.interval

    @property
    def names(self) -> tuple[str, ...]:
        """Fields that set a bound."""
        return tuple(term for bound in self._texts for term in _terms(bound) if not isinstance(term, float))

    def bounds(self, values: Mapping[str, Any] | None = None) -> tuple[float, float]:
        """Returns the lower and the upper bound.

        Args:
            values: values of the fields that set a bound. One that is missing or None sets none.
        """
        low, high = (
            [(values or {}).get(term) if isinstance(term, str) else term for term in _terms(bound)]
            for bound in self._texts
        )
        return _sum(low, -math.inf), _sum(high, math.inf)

    def resolve(self, values: Mapping[str, Any]) -> Range:
        """Returns the range with numbers in the place of fields' names."""
        if not self.names:
            return self
        low, high = (str(int(each) if float(each).is_integer() else each) for each in self.bounds(values))
        return Range(f"{self.interval[0]}{low}, {high}{self.interval[-1]}")

    def contains(self, number: float) -> bool:
        """Whether ``number`` is in the interval, which must be resolved."""
        low, high = self.bounds()
        above = number > low or (self.interval[0] == "[" and number == low)
        below = number < high or (self.interval[-1] == "]" and number == high)
        return above and below

    def json_schema(self) -> dict[str, float]:
        """Returns the finite bounds as keywords of JSON Schema; bounds that a field sets have none."""
        low, high = self.bounds()
        names = (
            "minimum" if self.interval[0] == "[" else "exclusiveMinimum",
            "maximum" if self.interval[-1] == "]" else "exclusiveMaximum",
        )
        return {
            name: int(bound) if bound.is_integer() else bound
            for name, bound in zip(names, (float(low), float(high)), strict=True)
            if math.isfinite(bound)
        }

    @property
    def _texts(self) -> list[str]:
        return self.interval[1:-1].split(",")


def _sum(terms: list[float | None], infinity: float) -> float:
    numbers = [term for term in terms if term is not None]
    return sum(numbers) if len(numbers) == len(terms) else infinity


def _terms(bound: str) -> Iterator[float | str]:
    for term in bound.split("+"):
        try:
            yield float(term)
        except ValueError:
            yield term.strip()


def range_of(hint: Any) -> Range | None:
    """Returns the Range in a field's type, at any depth; None if it has none."""
    if isinstance(hint, Range):
        return hint
    # Of an Annotated type, __metadata__ holds the markers and get_args() begins with the plain type.
    ranges = (range_of(each) for each in get_args(hint))
    return next((each for each in ranges if each is not None), None)


@cache
def ranges_of(cls: type) -> dict[str, Range]:
    """Returns the ranges that a dataclass declares: name of the field -> Range."""
    hints = get_type_hints(cls, include_extras=True)
    ranges = {field.name: range_of(hints[field.name]) for field in fields(cls)}
    return {name: each for name, each in ranges.items() if each is not None}


def range_problems(settings: Any) -> list[Problem]:
    """Returns a Problem for each value of a dataclass's instance that is outside its declared range."""
    problems: dict[str, list[Problem]] = {}
    declared = ranges_of(cast(Any, type(settings)))
    # A bound that is a field means nothing while that field is out of its own range.
    for name in sorted(declared, key=lambda each: len(declared[each].names)):
        bounds = declared[name].names
        if any(problems.get(each) for each in bounds):
            continue
        allowed = declared[name].resolve({each: getattr(settings, each) for each in bounds})
        problems[name] = [
            Problem("", f"{fault}, got {number}.", key)
            for key, number in _numbers(name, getattr(settings, name))
            if (fault := _fault(allowed, number))
        ]
    return [problem for name in declared for problem in problems.get(name, ())]


def _fault(allowed: Range, number: Any) -> str:
    """Returns what is wrong with a number, or an empty string.

    An open end of a range allows every sane size: integers of 32 bits, and floats up to 1e38, which float32
    can hold.
    """
    if not isinstance(number, Real) or not allowed.contains(cast(float, number)):
        return f"must be in {allowed}"
    largest, size = (MAX_INT if isinstance(number, Integral) else MAX_FLOAT), float(number)
    low, high = allowed.bounds()
    is_absurd = (high == math.inf and size > largest) or (low == -math.inf and size < -largest)
    return f"must be of a size up to {largest}" if is_absurd and math.isfinite(size) else ""


def _numbers(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields each number that a value holds, with its key."""
    if isinstance(value, Mapping):
        for inner, each in value.items():
            yield from _numbers(f"{key}.{inner}", each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _numbers(key, each)
    elif value is not None:
        yield key, value


def validated(cls: type[T]) -> type[T]:
    """Makes a dataclass check its declared ranges when it is constructed, before its ``__post_init__``.

    ``register`` does this for components; other dataclasses carry it over ``@dataclass``. The constructor
    raises a ConfigError, which is a ValueError, with one Problem for each value out of range.
    """
    name = "__post_init__" if hasattr(cls, "__post_init__") else "__init__"
    original: Callable[..., None] = getattr(cls, name)
    if hasattr(original, "checks_ranges"):
        return cls

    @functools.wraps(original)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        if name == "__init__":
            original(self, *args, **kwargs)
        if problems := range_problems(self):
            raise ConfigError(problems)
        if name == "__post_init__":
            original(self, *args, **kwargs)

    checked.checks_ranges = True  # type: ignore[attr-defined]
    setattr(cls, name, checked)
    return cls
