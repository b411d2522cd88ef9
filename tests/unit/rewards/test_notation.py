r"""Numbers as people and models write them: verifiers accept equal values and refuse near misses."""

from __future__ import annotations

import pytest

from titanrl.components.rewards.math_answer import grade
from titanrl.components.rewards.math_text import based_number, rewritten
from titanrl.components.rewards.text import last_number

pytestmark = pytest.mark.filterwarnings("ignore")
EQUAL = [
    (r"\boxed{18.50}", r"\$18.50"),
    (r"\boxed{\$18.50}", "18.5"),
    (r"The answer is \$18.50", "18.50"),
    (r"\boxed{€12}", "12"),
    (r"\boxed{12500}", r"12\,500"),
    (r"\boxed{12 500}", "12500"),
    (r"\boxed{1{,}234}", "1234"),
    (r"\boxed{3.5}", "3 1/2"),
    (r"\boxed{3\frac{1}{2}}", "3 1/2"),
    (r"\boxed{-3 1/2}", "-3.5"),
    (r"\boxed{1500}", "1.5e3"),
    (r"\boxed{1.5\times 10^3}", "1.5e3"),
    (r"\boxed{2e-3}", "0.002"),
    (r"\boxed{\frac{1}{3}}", r"0.\overline{3}"),
    (r"\boxed{0.1\overline{6}}", "1/6"),
    (r"\boxed{1/3}", "0.(3)"),
    (r"\boxed{0.333...}", "1/3"),
    (r"\boxed{−5}", "-5"),
    (r"\fbox{5}", "5"),
    (r"\boxed{1010_2}", "1010_{2}"),
    (r"\boxed{1010}", "1010_2"),
    (r"\boxed{2\pi}", r"2\pi"),
    (r"\boxed{\{1,2\}}", r"\{2,1\}"),
    (r"\boxed{[2,3)}", "[2,3)"),
    (r"\boxed{50\%}", r"50\%"),
    (r"\boxed{90^\circ}", "90"),
    (r"\boxed{\text{Tuesday}}", "Tuesday"),
]
DIFFERENT = [
    (r"\boxed{18.05}", r"\$18.50"),
    (r"\boxed{12.5}", r"12\,500"),
    (r"\boxed{31/2}", "3 1/2"),
    (r"\boxed{3 1/3}", "3 1/2"),
    (r"\boxed{1.5}", "1.5e3"),
    (r"\boxed{0.3}", r"0.\overline{3}"),
    (r"\boxed{0.33}", "0.333..."),
    (r"\boxed{5}", "−5"),
    (r"\boxed{1010_3}", "1010_2"),
    (r"\boxed{10}", "1010_2"),
    (r"\boxed{[2,3]}", "[2,3)"),
    (r"\boxed{(3,2)}", "(2,3)"),
]


@pytest.mark.slow
def test_math_answer_reads_the_notation_of_numbers() -> None:
    wrong = [pair for pair in EQUAL if grade(*pair) != 1.0] + [pair for pair in DIFFERENT if grade(*pair)]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The total is −5.", -5.0),
        ("3/4", 0.75),
        ("so 1/4 of it", 0.25),
        ("it is -1/2.", -0.5),
        ("1.5e3", 1500.0),
        ("2E-2 m", 0.02),
        ("on 3/4/2020", 2020.0),
        ("1/0", 0.0),
        ("10-5", 5.0),
        ("1,234,567.5 dollars.", 1234567.5),
        ("x = .5", 0.5),
        ("about 3.", 3.0),
    ],
)
def test_last_number_is_read(text: str, number: float) -> None:
    assert last_number(text) == number


def test_ordinary_formulas_are_left_as_they_are() -> None:
    for text in (r"f(3) = 0.5(4)x", r"\frac{1}{2}", "x_2 + 1", "(1, 2)", "2 3", "e3", r"\sqrt{2}", "12,500"):
        assert rewritten(text) == text
    assert based_number("x_2") is None
    assert based_number("129_8") is None
    assert based_number(r"$\text{FF}_{16}$") is None


def test_long_texts_are_rewritten_in_no_time() -> None:
    for unit in ("1", "1 ", "1/2 ", ".3", "0.3", "1\\,", "(", "1e"):
        assert len(rewritten(unit * 20_000)) > 0
