"""Ranges that fields declare: what they hold, where they are checked, and what JSON Schema says of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, get_args

import pytest

from tests.unit.config.test_tables import TABLES
from titanrl.ablation.settings import Budgets, Expectation, Settings
from titanrl.config.json_schema import file_schema
from titanrl.config.report_tables import Profile, Report
from titanrl.config.tables import CriticOptimizer, Reward
from titanrl.errors import ConfigError
from titanrl.registry import FOLDERS, Range, component_class, names, register, validated
from titanrl.registry.decode import build, fields_of
from titanrl.registry.ranges import ranges_of


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    clip: Annotated[float | None, Range("(0, 1)")] = None
    cap: Annotated[float, Range("(1 + clip, inf)")] = 3.0
    sizes: Annotated[tuple[int, ...], Range("[1, 9]")] = ()
    weights: Annotated[dict[str, float], Range("(-inf, inf)")] = field(default_factory=dict)
    top: Annotated[int, Range("[0, inf)")] | None = None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"clip": 1}, "clip must be in (0, 1), got 1."),
        ({"clip": math.nan}, "clip must be in (0, 1), got nan."),
        ({"clip": "0.5"}, "clip must be in (0, 1), got 0.5."),
        ({"clip": 0.5, "cap": 1.5}, "cap must be in (1.5, inf), got 1.5."),
        ({"sizes": (1, 10)}, "sizes must be in [1, 9], got 10."),
        ({"sizes": [0]}, "sizes must be in [1, 9], got 0."),
        ({"weights": {"tone": math.inf}}, "weights.tone must be in (-inf, inf), got inf."),
        ({"weights": {"tone": math.nan}}, "weights.tone must be in (-inf, inf), got nan."),
        ({"top": -1}, "top must be in [0, inf), got -1."),
        ({"clip": 2, "top": -1}, "clip must be in (0, 1), got 2.\ntop must be in [0, inf), got -1."),
    ],
)
def test_value_outside_its_range_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Table(**values)
    assert str(caught.value) == message
    with pytest.raises(ConfigError):
        replace(Table(), **values)


@pytest.mark.parametrize(
    "values",
    [{}, {"clip": 0.5, "cap": 1.6}, {"cap": -5.0}, {"sizes": (1, 9)}, {"weights": {"a": -1.0}}, {"top": 0}],
)
def test_value_inside_its_range_passes(values: dict[str, Any]) -> None:
    Table(**values)


@pytest.mark.parametrize(
    ("value", "interval", "is_in"),
    [
        (0, "[0, 1)", True),
        (0, "(0, 1)", False),
        (1, "[0, 1)", False),
        (1, "(0, 1]", True),
        (math.inf, "(0, inf]", True),
        (math.inf, "(0, inf)", False),
        (-1, "(-inf, 0]", True),
        (math.nan, "(-inf, inf)", False),
        (math.nan, "[-inf, inf]", False),
        (10**400, "[0, inf)", True),
    ],
)
def test_range_contains_the_values_of_the_interval(value: float, interval: str, is_in: bool) -> None:
    assert Range(interval).contains(value) == is_in


@pytest.mark.parametrize("interval", ["", "0, 1", "[0, 1", "(0)", "(0, 1, 2)", "(0, 2 * clip)"])
def test_text_that_is_no_interval_is_refused(interval: str) -> None:
    with pytest.raises(ValueError, match=r"a range must look like|a bound must be a number"):
        Range(interval)


def test_ranges_of_a_component_are_checked_before_its_own_checks() -> None:
    @register("loss", "ranged")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Ranged:
        size: Annotated[int, Range("[1, inf)")] = 1

        def __post_init__(self) -> None:
            assert 1 // self.size

        def __call__(self, policy: Any, batch: Any) -> None: ...

    with pytest.raises(ConfigError, match=r"^size must be in \[1, inf\), got 0\.$"):
        Ranged(size=0)
    with pytest.raises(ConfigError, match=r"^loss 'ranged' size must be in \[1, inf\), got 0\.$"):
        build("loss", {"name": "ranged", "size": 0})


def test_ranges_of_a_component_without_checks_of_its_own_are_checked() -> None:
    @register("loss", "ranged")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Ranged:
        size: Annotated[int, Range("[1, inf)")]

        def __call__(self, policy: Any, batch: Any) -> None: ...

    with pytest.raises(ConfigError, match=r"^size must be in \[1, inf\), got 0\.$"):
        Ranged(size=0)


@pytest.mark.parametrize(
    "table",
    [*TABLES, CriticOptimizer, Profile, Report, Budgets, Expectation, Settings],
    ids=lambda table: table.__name__,
)
def test_every_table_with_a_range_checks_it(table: type) -> None:
    check = getattr(table, "__post_init__", table.__init__)
    assert hasattr(check, "checks_ranges") or not ranges_of(table)


@pytest.mark.parametrize("key", ["weight", "failure_score"])
def test_infinite_number_in_a_reward_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{key} must be in \(-inf, inf\), got inf\.$"):
        Reward(component=build("reward", {"name": "exact_match"}), **{key: math.inf})


def test_json_schema_has_the_bounds() -> None:
    tables = file_schema()["properties"]
    loop, alerts = tables["loop"]["properties"], tables["alerts"]["properties"]
    assert loop["steps"]["minimum"] == 1
    assert loop["target_kl"]["exclusiveMinimum"] == 0
    assert alerts["length_growth"]["exclusiveMinimum"] == 1
    assert tables["optimizer"]["properties"]["beta1"].items() >= {"minimum": 0, "exclusiveMaximum": 1}.items()
    assert tables["profile"]["properties"]["steps"]["items"]["minimum"] == 1
    assert "maximum" not in loop["steps"]


def numeric_fields_without_range(cls: type) -> set[str]:
    def is_numeric(hint: Any) -> bool:
        return hint in (int, float) or any(map(is_numeric, get_args(hint)))

    ranges = ranges_of(cls)
    return {name for name, (_, hint) in fields_of(cls).items() if is_numeric(hint) and name not in ranges}


@pytest.mark.parametrize("kind", sorted(FOLDERS))
def test_every_number_of_a_component_has_a_range(kind: str) -> None:
    # Other tests register components of their own in this process.
    classes = [component_class(kind, name) for name in names(kind)]
    built_in = [cls for cls in classes if cls.__module__.startswith("titanrl.components.")]
    assert built_in
    for cls in built_in:
        # The options of a task have the ranges that the task declares.
        assert numeric_fields_without_range(cls) <= {"options"}, cls


def test_field_that_is_declared_again_keeps_a_range() -> None:
    for value in (-1.0, 0.0, math.nan):
        with pytest.raises(ConfigError, match="output_clamp must be"):
            build("kl", {"name": "k3", "output_clamp": value})
