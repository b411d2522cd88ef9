"""Arithmetic, evaluated without running any code."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from titanrl.protocols.tools import LiveTool, OpenTool
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from titanrl.protocols import RolloutRequest

__all__ = ["Calculator", "calculate"]

MAX_CHARS = 1000
"""Longest expression."""
MAX_DEPTH = 60
"""Nesting of an expression."""
CONSTANTS = MappingProxyType({"pi": math.pi, "e": math.e})
FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "abs": abs,
        "ceil": math.ceil,
        "cos": math.cos,
        "exp": math.exp,
        "floor": math.floor,
        "gcd": math.gcd,
        "log": math.log,
        "log10": math.log10,
        "log2": math.log2,
        "max": max,
        "min": min,
        "round": round,
        "sin": math.sin,
        "sqrt": math.sqrt,
        "tan": math.tan,
    }
)
UNARY: Mapping[type, Callable[[Any], Any]] = MappingProxyType(
    {ast.UAdd: operator.pos, ast.USub: operator.neg}
)
BINARY: Mapping[type, tuple[Callable[[Any, Any], Any], str]] = MappingProxyType(
    {
        ast.Add: (operator.add, "+"),
        ast.Sub: (operator.sub, "-"),
        ast.Mult: (operator.mul, "*"),
        ast.Div: (operator.truediv, "/"),
        ast.FloorDiv: (operator.floordiv, "//"),
        ast.Mod: (operator.mod, "%"),
        ast.Pow: (operator.pow, "**"),
    }
)


@register("tool", "calculator")
@dataclass(frozen=True, slots=True, kw_only=True)
class Calculator:
    """Calculator for the operators + - * / // % ** and functions such as sqrt, round, min and log.

    The expression is parsed, not run. `^` is a power, `×` and `÷` are read too, and whole numbers stay exact.
    A number that would have more than `max_digits` digits is an error instead of a long calculation.
    """

    max_digits: Annotated[int, Range("[16, 4000]")] = 1000
    """Largest number of digits of a whole number, also within the calculation."""

    def start(self) -> LiveCalculator:
        """Creates the live tool."""
        return LiveCalculator(self.max_digits)


class LiveCalculator(LiveTool):
    """Live tool of `calculator`."""

    def __init__(self, max_digits: int) -> None:
        from titanrl.runtime.tools.schemas import FunctionTool

        def calculator(expression: str) -> str:
            """Calculate the value of an arithmetic expression.

            Args:
                expression: For example (3 + 4) * 2 or sqrt(2) ** 3.
            """
            return calculate(expression, max_digits)

        tool = FunctionTool(calculator)
        self.schemas = (tool.schema,)
        self._opened = OpenTool({tool.name: tool})

    def open(self, row: RolloutRequest) -> OpenTool:
        """Returns the function, which has no state."""
        return self._opened


def calculate(expression: str, max_digits: int = 1000) -> str:
    """Returns the value of an arithmetic expression as text.

    Args:
        expression: the expression.
        max_digits: largest number of digits of a whole number.

    Raises:
        ValueError: the expression is no arithmetic, or too large.
        ArithmeticError: a division by zero, or a result out of range.
    """
    if len(expression) > MAX_CHARS:
        raise ValueError(f"the expression must have at most {MAX_CHARS} characters, got {len(expression)}")
    text = expression.strip().replace("×", "*").replace("÷", "/").replace("−", "-").replace("^", "**")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"this is no arithmetic expression: {expression[:100]!r}") from None
    value = _value(tree.body, max_digits, 0)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def _value(node: ast.expr, max_digits: int, depth: int) -> int | float:
    if depth > MAX_DEPTH:
        raise ValueError(f"the expression must be nested at most {MAX_DEPTH} deep")
    value: Any
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        value = node.value
    elif isinstance(node, ast.Name) and node.id in CONSTANTS:
        value = CONSTANTS[node.id]
    elif isinstance(node, ast.UnaryOp) and type(node.op) in UNARY:
        value = UNARY[type(node.op)](_value(node.operand, max_digits, depth + 1))
    elif isinstance(node, ast.BinOp) and type(node.op) in BINARY:
        function, _ = BINARY[type(node.op)]
        left, right = (_value(each, max_digits, depth + 1) for each in (node.left, node.right))
        if isinstance(node.op, ast.Pow):
            _check_power(left, right, max_digits)
        value = function(left, right)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
        if node.keywords:
            raise ValueError(f"{node.func.id} takes no named arguments")
        try:
            value = FUNCTIONS[node.func.id](*(_value(each, max_digits, depth + 1) for each in node.args))
        except TypeError as error:
            raise ValueError(str(error)) from None
    else:
        known = f"numbers, {' '.join(sign for _, sign in BINARY.values())} and {', '.join(FUNCTIONS)}"
        raise ValueError(f"{ast.unparse(node)[:50]!r} is not allowed; an expression has {known}")
    return _checked(value, max_digits)


def _checked(value: Any, max_digits: int) -> int | float:
    if isinstance(value, complex):
        raise ValueError("the result is no real number")
    if isinstance(value, int) and value.bit_length() > _bits(max_digits):
        raise OverflowError(f"the number has more than {max_digits} digits")
    number: int | float = value
    return number


def _check_power(base: int | float, exponent: int | float, max_digits: int) -> None:
    """Refuses a power before it is calculated: a whole number may take more than all memory."""
    if isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1:
        lowest = (abs(base).bit_length() - 1) * exponent
        if lowest > _bits(max_digits):
            raise OverflowError(f"the number has more than {max_digits} digits")


def _bits(digits: int) -> int:
    return math.ceil(digits * math.log2(10))
