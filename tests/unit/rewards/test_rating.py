"""Ratings in the replies of judges: which are read, and which are ambiguous."""

from __future__ import annotations

import time

import pytest

from titanrl.components.rewards.rating import parse_rating

TEN = (1.0, 10.0)


@pytest.mark.parametrize(
    ("reply", "rating"),
    [
        ("7", 7),
        ("7.", 7),
        (" **7** ", 7),
        ("7.5", 7.5),
        ("3 / 10", 3),
        ("3/10.", 3),
        ("Score: 7 (out of 10)", 7),
        ("**Rating:** 7 out of 10", 7),
        ("Final rating: `4`", 4),
        ("My overall rating is 8.", 8),
        ("The score for this response is: 6", 6),
        ("Rating: [[5]]", 5),
        ("\\boxed{9}", 9),
        ("5 points", 5),
        ('"8"', 8),
        ("<think>between 3 and 5</think>\n\n4", 4),
        ("There are 2 typos, 1 of them bad.\nRating: 6\n", 6),
        ("I give it 5", 5),
        ("A solid 7/10 in my view.", 7),
        ("I would rate this 9 out of 10!", 9),
    ],
)
def test_stated_rating_is_read(reply: str, rating: float) -> None:
    assert parse_rating(reply, TEN) == rating


@pytest.mark.parametrize(
    "reply",
    [
        "7-8",
        "7–8",
        "7 to 8",
        "7, maybe 8",
        "Rating: 5, with 2 typos",
        "Rating: 5 ... 2 typos",
        "1 or rather 5: 9.",
        "7,5",
        "7½",
        "1e1",
        "5%",
        "٣ or 3",
        "3 / 10 for style, 5 / 10 for content",
        "On a scale of 1 to 10 I give it 7",
        "Rating: 5\nThere were 2 typos",
        "v2",
    ],
)
def test_ambiguous_reply_is_a_failure(reply: str) -> None:
    reason = parse_rating(reply, TEN)
    assert isinstance(reason, str)
    assert reason.startswith("the model gave an ambiguous rating in [1, 10], its reply ends with")


@pytest.mark.parametrize(
    ("reply", "scale", "problem"),
    [
        ("", TEN, "gave no rating"),
        ("no idea", TEN, "gave no rating"),
        ("11", TEN, "gave no rating"),
        ("-5", TEN, "gave no rating"),
        ("−5", TEN, "gave no rating"),
        ("3 / 10", (1.0, 5.0), "gave a rating out of 10, not"),
        ("3 / 5", TEN, "gave a rating out of 5, not"),
        ("9" * 400, TEN, "gave no rating"),
    ],
)
def test_reply_off_the_scale_is_a_failure(reply: str, scale: tuple[float, float], problem: str) -> None:
    assert str(parse_rating(reply, scale)).startswith(f"the model {problem} in [")


def test_negative_scale_is_read() -> None:
    assert parse_rating("Score: −0.5", (-1.0, 1.0)) == -0.5
    assert parse_rating("-1", (-1.0, 1.0)) == -1


@pytest.mark.slow
@pytest.mark.parametrize("unit", [" ", "7 ", "a ", "(", "score ", "*", "7/", "9"])
def test_long_reply_takes_no_time(unit: str) -> None:
    began = time.process_time()
    parse_rating(unit * 200_000 + "x", TEN)
    assert time.process_time() - began < 2
