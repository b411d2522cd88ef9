"""What is cut out of an answer: boxes, numbers, tags."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from titanrl.components.rewards.text import last_boxed, last_number, last_tag


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{\frac{1}{2}} .", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{\sqrt{2}+\frac{3}{4}}", r"\sqrt{2}+\frac{3}{4}"),
        (r"\boxed{1", None),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed {7}", "7"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{a \boxed{b}", "b"),
        (r"} \boxed{}", ""),
        (r"{{ \boxed{x}} }", "x"),
        ("boxed{1}", None),
        ("", None),
    ],
)
def test_last_balanced_box_is_found(text: str, content: str | None) -> None:
    """Nested braces, several boxes, boxes that never close."""
    assert last_boxed(text) == content


@pytest.mark.slow
@given(st.text(alphabet="ab{}\\", max_size=30))
def test_last_box_agrees_with_counting_braces(text: str) -> None:
    text = text.replace("b", r"\boxed{")
    expected = None
    for start in [i + 7 for i in range(len(text)) if text.startswith(r"\boxed{", i)]:
        depth = 1
        for end in range(start, len(text)):
            depth += (text[end] == "{") - (text[end] == "}")
            if depth == 0:
                expected = text[start:end]
                break
    assert last_boxed(text) == expected


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("72 clips, altogether.", 72),
        ("8,000", 8000),
        ("$29.00", 29),
        ("Answer: -5", -5),
        ("Reward: 10", 10),
        ("**73**", 73),
        ("1,234,567.5 dollars.", 1234567.5),
        ("x = .5", 0.5),
        ("about 3.", 3),
        ("10-5", 5),
        ("no idea", None),
        ("x2", None),
        ("", None),
    ],
)
def test_last_number_is_read(text: str, number: float | None) -> None:
    """Commas, currency, signs, bold marks, many digits."""
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<answer>a</answer><answer> b </answer>", " b "),
        ("<answer>a<answer>b</answer>", "b"),
        ("<answer>a</answer></answer>", "a"),
        ("<answer>a</answer><answer>b", "a"),
        ("</answer><answer>", None),
        ("a", None),
    ],
)
def test_last_tag_is_found(text: str, content: str | None) -> None:
    assert last_tag(text, "answer") == content


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", [r"\boxed{", "}", "{", "1,111", "1", ".1", "<answer>", "</answer>", "-", "x\u0000\ud800"]
)
def test_extraction_takes_linear_time(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    start = time.perf_counter()
    last_boxed(text), last_number(text), last_tag(text, "answer")
    assert time.perf_counter() - start < 10
