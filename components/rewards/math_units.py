r"""Units behind a value: ``5\text{ cm}`` is the value 5 with the unit cm.

Standard library only, because grading workers import it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Measured", "measured", "same_unit"]

PART = (
    r"\\(?:text|textrm|textnormal|textit|mathrm|mathit|mbox|operatorname)\s*\{[^{}]*\}"
    r"(?:\s*\^\s*(?:\{[^{}]*\}|\d))?"
)
SPACE = r"(?:\s|\\[,;:! ]|~|\\quad\b)*"
TEXT_UNIT = re.compile(
    rf"(?P<value>.*[0-9A-Za-z)\]}}!%|]){SPACE}(?P<unit>{PART}(?:{SPACE}(?:\\cdot\b|\\times\b|/)?{SPACE}{PART})*)"
    rf"{SPACE}",
    re.DOTALL,
)
PLAIN_UNIT = re.compile(
    r"(?P<value>[-+]?(?:\d[\d.,]*|\.\d+|\\[dt]?frac\{\d+\}\{\d+\}|\d+\s*/\s*\d+))(?P<space>\s*)"
    r"(?P<unit>[A-Za-z]+(?:[ /][A-Za-z]+)*(?:\^\{?\d\}?)?)"
)
NUMBER = re.compile(r"[-+]?(?:\d[\d.,]*|\.\d+|\\[dt]?frac\{\d+\}\{\d+\}|\d+\s*/\s*\d+)")
PERCENT = re.compile(
    rf"(?P<value>.*[^\s\\]){SPACE}(?:\\?%|\\text\s*\{{\s*(?:percent|pct)\s*\}}|\bpercent)\s*", re.DOTALL
)
MAX_LENGTH = 1000
NO_UNITS = frozenset({"and", "or", "pi", "mod", "choose", "inf", "infinity", "percent", "pct", "percentage"})
"""Words behind a value that are no unit."""

_NAMES = {
    "mm": "millimeter millimeters millimetre millimetres",
    "cm": "centimeter centimeters centimetre centimetres",
    "m": "meter meters metre metres",
    "km": "kilometer kilometers kilometre kilometres",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yard yards",
    "mi": "mile miles",
    "s": "sec secs second seconds",
    "min": "mins minute minutes",
    "h": "hr hrs hour hours",
    "d": "day days",
    "wk": "week weeks",
    "mo": "month months",
    "yr": "year years",
    "mg": "milligram milligrams",
    "g": "gram grams gm",
    "kg": "kilogram kilograms",
    "lb": "lbs pound pounds",
    "oz": "ounce ounces",
    "mL": "ml milliliter milliliters millilitre millilitres",
    "L": "l liter liters litre litres",
    "gal": "gallon gallons",
    "J": "joule joules",
    "kJ": "kilojoule kilojoules",
    "eV": "electronvolt electronvolts",
    "keV": "",
    "MeV": "",
    "W": "watt watts",
    "kW": "kilowatt kilowatts",
    "MW": "megawatt megawatts",
    "N": "newton newtons",
    "kN": "kilonewton kilonewtons",
    "Pa": "pascal pascals",
    "kPa": "kilopascal kilopascals",
    "K": "kelvin kelvins",
    "V": "volt volts",
    "A": "amp amps ampere amperes",
    "C": "coulomb coulombs",
    "Hz": "hertz",
    "rad": "radian radians",
    "mol": "mole moles",
    "mi/h": "mph",
    "km/h": "kmh kmph kph",
    "cent": "cents",
    "dollar": "dollars",
    "deg": "degree degrees",
}
CANONICAL = {
    name: unit for unit, names in _NAMES.items() for name in (*names.split(), *[unit][: "/" not in unit])
}
"""Spelling of a unit -> the unit; two units of this table are never equal."""


class Measured(NamedTuple):
    """A formula without its unit."""

    value: str
    unit: str
    """The unit as it is written; empty without one."""
    is_percent: bool


def measured(formula: str, other: str) -> Measured:
    r"""Returns a formula without the unit or the percent sign at its end.

    A unit is a text behind a value, ``5\text{ cm}^2``, or a word behind a number, ``6 cups``. A single letter
    behind a number, ``5 m``, is a unit only where the other formula is a number alone; otherwise it is a
    factor. Formulas of more than 1,000 characters have no unit.

    Args:
        formula: in LaTeX, without dollar signs and boxes.
        other: the formula that it is compared with.
    """
    formula = formula.strip()
    if len(formula) > MAX_LENGTH:
        return Measured(formula, "", False)
    if (match := PERCENT.fullmatch(formula)) is not None:
        return Measured(match["value"], "", True)
    if (match := TEXT_UNIT.fullmatch(formula)) is not None:
        unit = _plain(match["unit"])
        if unit.casefold() in NO_UNITS or not any(letter.isalpha() for letter in unit):
            return Measured(formula, "", False)
        return Measured(match["value"], unit, False)
    if (match := PLAIN_UNIT.fullmatch(formula)) is not None:
        unit, first = match["unit"], re.split(r"[ /^]", match["unit"])[0]
        is_word = len(first) > 2 and bool(match["space"]) and not (set(unit.split()) & NO_UNITS)
        is_known = first in CANONICAL and (len(first) > 1 or NUMBER.fullmatch(other.strip()) is not None)
        if is_word or is_known:
            return Measured(match["value"], unit, False)
    return Measured(formula, "", False)


def same_unit(left: str, right: str) -> bool:
    """Returns whether two units may be the same; a missing or unknown unit may be any.

    Values are not converted: 5 m and 500 cm are different.
    """
    units = _canonical(left), _canonical(right)
    return None in units or units[0] == units[1]


def _canonical(unit: str) -> str | None:
    unit = re.sub(r"\bper\b", "/", _plain(unit))
    unit = re.sub(r"\b(?:square|sq)\s+([A-Za-z]+)", r"\1^2", unit)
    unit = re.sub(r"\b(?:cubic|cu)\s+([A-Za-z]+)", r"\1^3", unit)
    names = re.findall(r"[A-Za-z]+", unit)
    known = {name: CANONICAL.get(name) or CANONICAL.get(name.lower(), "") for name in names}
    if not names or "" in known.values():
        return None
    return re.sub(r"[A-Za-z]+", lambda match: known[match[0]], re.sub(r"\s+", "", unit))


def _plain(unit: str) -> str:
    """Returns a unit without the commands and braces around it."""
    unit = re.sub(r"\\(?:cdot|times)\b", "*", unit)
    return " ".join(re.sub(r"\\[A-Za-z]+\s*|\\[,;:! ]|[{}~]", " ", unit).split()).replace(" ^", "^")
