"""Which names of a test statement are the program's, and what travels between program and test."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import pytest

from titanrl.components.rewards.code_tests.statements import analyse
from titanrl.components.rewards.code_tests.wire import MAX_FRAME, Decoder, Encoder, TooLarge

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("source", "names", "library"),
    [
        ("assert add(2, 2) == 4", ["add"], {}),
        ("assert sorted(f([2, 1])) == [1, 2]", ["f"], {}),
        ("assert math.isclose(f(1), 0.5)", ["f"], {"math": ("math", "")}),
        ("import math as m\nassert m.isclose(f(1), 0.5)", ["f"], {}),
        ("assert isclose(f(1), 0.5)", ["f"], {"isclose": ("math", "isclose")}),
        ("assert np.allclose(f(1), [0.5])", ["f"], {"np": ("numpy", "")}),
        ("s = Stack()\ns.push(1)\nassert s.pop() == 1", ["Stack"], {}),
        ("def check(g):\n    assert g(1) == h(2)\ncheck(f)", ["f", "h"], {}),
        ("assert [f(i) for i in range(3)] == [0, 1, 4]", ["f"], {}),
        ("assert queue(1) == 1", ["queue"], {}),
    ],
)
def test_names_that_a_test_does_not_define_are_the_programs(
    source: str, names: list[str], library: dict[str, tuple[str, str]]
) -> None:
    statement = analyse(source)
    assert (statement.names, statement.library) == (names, library)


def test_declared_builtin_is_the_programs() -> None:
    assert analyse("assert sum(1, 2) == 3", ["sum"]).names == ["sum"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("assert sum([1, 2]) == 3", "calls no function of the program"),
        ("assert True", "calls no function of the program"),
        ("def check(candidate): assert candidate(1) == 1", "calls no function of the program"),
        ("assert f(", "is no Python"),
        ("assert f(1) == '\0'", "is no Python"),
    ],
)
def test_test_without_a_name_of_the_program_is_refused(source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        analyse(source)


@pytest.mark.parametrize(
    ("source", "is_weak"),
    [
        ("assert f(2) == 4", False),
        ("assert f(2)", False),
        ("assert f(2) == 4 and g(3) == 9", False),
        ("s = Stack()\ns.push(1)\nassert s.pop() == 1", False),
        ("assert decode(encode('x')) == 'x'", True),
        ("y = encode('x')\nassert decode(y) == 'x'", True),
        ("assert same(f(2), 4)", True),
        ("assert f(2) == f(3)", True),
        ("x = f(2)\nassert x == g(4)", True),
    ],
)
def test_test_whose_verdict_may_be_the_programs_own_is_weak(source: str, is_weak: bool) -> None:
    assert analyse(source).is_weak is is_weak


VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1 << 20_000,
    1.5,
    -0.0,
    math.inf,
    2 - 3j,
    "",
    "é\ud800\0;",
    b"\xff;",
    bytearray(b"x"),
    [1, [2, []]],
    (1, (2,)),
    {1, 2},
    frozenset({"a"}),
    {"a": [1], 2: {}},
    range(1, 9, 3),
    int,
    type(None),
    Decimal("1.50"),
    Fraction(-1, 3),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_plain_data_travels_by_value_and_type(value: Any) -> None:
    copy = Decoder().decode(Encoder().encode(value))
    assert type(copy) is type(value)
    # Python refuses the text of a very long int; of others it shows the sign of zero too.
    assert copy == value
    assert type(value) is int or repr(copy) == repr(value)


def test_subclasses_travel_as_their_builtin_type() -> None:
    class Odd(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

        def __index__(self) -> int:
            return 4

    copy = Decoder().decode(Encoder().encode({"x": [Odd(7)]}))
    assert copy == {"x": [7]}
    assert type(copy["x"][0]) is int


def test_arrays_travel_with_shape_and_dtype() -> None:
    array = numpy.arange(6, dtype=numpy.int16).reshape(2, 3)
    copy = Decoder().decode(Encoder().encode(array))
    assert copy.dtype == array.dtype
    assert copy.tolist() == array.tolist()
    assert type(Decoder().decode(Encoder().encode(numpy.float32(1.5)))) is float


def test_values_that_are_too_large_or_deep_are_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    doubled: list[Any] = [0]
    for _ in range(40):
        doubled = [doubled, doubled]
    for value in (loop, doubled, "x" * (MAX_FRAME + 1), bytes(MAX_FRAME + 1)):
        with pytest.raises(TooLarge):
            Encoder().encode(value)


@pytest.mark.parametrize("value", [object(), lambda: 0, iter([])])
def test_objects_that_are_no_plain_data_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="is no plain data"):
        Encoder().encode([value])


def test_damaged_codes_raise_errors_of_a_few_kinds_only() -> None:
    generator, code = random.Random(0), Encoder().encode(VALUES)
    for _ in range(3000):
        damaged = bytearray(code[generator.randrange(len(code)) :][: generator.randrange(1, 200)])
        damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        try:
            Decoder().decode(bytes(damaged))
        except (ValueError, TypeError, LookupError, ArithmeticError):
            continue


def test_a_name_cannot_reach_other_types() -> None:
    for code in (b"ysystem;", b"xsystem;1;x", b"ao;1;1;x", b"o1,;", b"f1;"):
        with pytest.raises((ValueError, LookupError)):
            Decoder().decode(code)
