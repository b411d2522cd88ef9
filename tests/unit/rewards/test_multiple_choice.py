"""The letter that a response chooses, as models state it."""

from __future__ import annotations

from typing import Any

import pytest
from tensordict import TensorDict

import titanrl
from titanrl.components.rewards.multiple_choice import choice_of

CITIES = ("Rome", "Paris", "New York", "A train")


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("B", "B"),
        ("(b)", "B"),
        ("B.", "B"),
        ("**B**", "B"),
        ("B) Paris", "B"),
        ("B. Paris is the capital of France.", "B"),
        ("Answer: C", "C"),
        ("**Answer:** (C)", "C"),
        ("The correct answer is B.", "B"),
        ("The answer is (D), because A and B are wrong.", "D"),
        ("the answer is b", "B"),
        ("I first thought the answer is A, but the correct option is C.", "C"),
        (r"So $\boxed{B}$", "B"),
        (r"\boxed{\text{(C)}}", "C"),
        (r"\boxed{\textbf{D}} is not \boxed{A}", "A"),
        (r"\boxed{B. Paris}", "B"),
        ("<answer>D</answer>", "D"),
        ("Let me think. A is too small. B is correct.", "B"),
        ("I would choose option C.", "C"),
        ("I'd go with B", "B"),
        ("Final answer: Option D", "D"),
        ("Option (A) is the best choice here", "A"),
        ("Reasoning about cities.\n\nC", "C"),
        ("C\n\nBecause it is larger.", "C"),
        ("The answer is New York.", "C"),
        (r"\boxed{Paris}", "B"),
        ("Paris", "B"),
        ("The answer is A train.", "D"),
        ("The answer is 'B'", "B"),
        ("Answer is: [A]", "A"),
        ("ANSWER: D", "D"),
        ("The answer is A because it is old.", "A"),
    ],
)
def test_letter_is_read(response: str, letter: str) -> None:
    assert choice_of(response, "ABCD", CITIES) == letter


@pytest.mark.parametrize(
    "response",
    [
        "",
        "I do not know.",
        "The answer is a city.",
        "The answer is A or B.",
        "A and B are plausible.",
        r"\boxed{E}",
        r"\boxed{A, B}",
        r"\boxed{}",
        "Answer: E",
        "A nice question! I cannot decide.",
        "Because of this, I am unsure",
    ],
)
def test_no_letter_is_read(response: str) -> None:
    assert choice_of(response, "ABCD", CITIES) is None


def scores(responses: list[str], answers: list[str], columns: list[dict[str, Any]], **keys: Any) -> Any:
    text = {"response": responses, "answer": answers, "columns": columns}
    rows = TensorDict({"text": text}, batch_size=[len(responses)])
    return titanrl.build("reward", {"name": "multiple_choice", **keys}).scores(rows)


def test_reference_is_a_letter_an_index_or_a_text() -> None:
    columns = [{"choices": list(CITIES)}] * 3 + [{"choices": {"text": list(CITIES), "label": list("ABCD")}}]
    assert scores(["B"] * 4, ["(B)", "1", "Paris", "paris"], columns) == [1.0] * 4
    assert scores(["C"] * 4, ["(B)", "1", "Paris", "paris"], columns) == [0.0] * 4


def test_number_of_choices_is_that_of_the_row() -> None:
    assert scores(["E", "E"], ["A", "E"], [{}, {"choices": list("vwxyz")}]) == [0.0, 1.0]
    assert scores(["J"], ["9"], [{}], num_choices=10) == [1.0]


def test_reference_that_is_no_choice_fails_the_row() -> None:
    failed, scored = scores(["A", "A"], ["E", "A"], [{}, {}])
    assert failed == "the reference answer 'E' is none of A to D"
    assert scored == 1.0


@pytest.mark.slow
def test_long_texts_are_read_in_no_time() -> None:
    for unit in ("answer is ", "A ", "(", "answer: option ", "\n", "**", "is"):
        choice_of(unit * 20_000, "ABCD", CITIES)
