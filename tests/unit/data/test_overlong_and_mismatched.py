"""Overlong dataset examples, and the mismatched pairs of KTO's reference point."""

from __future__ import annotations

import pytest

from tests.unit.data.test_examples import Texts
from tests.unit.training.test_kto_reference_point import batch_of, engine_of, raw
from titanrl.data.encode import TokenizedExample
from titanrl.data.examples import ExampleLoader
from titanrl.errors import ConfigError, TrainingError
from titanrl.protocols import Example
from titanrl.training.kto_reference_point import mismatched, reference_point

PROMPT, ANSWER, LIMIT = [1, 2, 3], [4, 5, 6], 4


def feed(*answers: str, on_overlong: str) -> ExampleLoader:
    """Return examples of one prompt; a response has as many tokens as its text has characters."""

    def encode(row: Example) -> TokenizedExample:
        assert isinstance(row.response, str)
        answer = ANSWER[: len(row.response)]
        return TokenizedExample(PROMPT + answer, [False] * 3 + [True] * len(answer), {}, {})

    return ExampleLoader(Texts(answers, on_overlong), encode, seed=0, seq_len=LIMIT)  # type: ignore[arg-type]


def test_overlong_example_is_refused_and_not_truncated() -> None:
    with pytest.raises(ConfigError, match=r"a row of 6 tokens, more than \[training\] seq_len = 4"):
        feed("xxx", on_overlong="error").check()


def test_overlong_example_is_dropped_and_counted() -> None:
    drawn = feed("xxx", "x", on_overlong="drop").next_batch(2)
    assert [(row.ids, row.loss_mask) for (row,) in drawn.groups] == [
        ([1, 2, 3, 4], [False, False, False, True])
    ] * 2
    assert drawn.dropped in (1, 2), "one per epoch begun before the second example that fits"


def test_mismatched_kto_response_keeps_a_label() -> None:
    """A prompt leaves space for at least one token, because its own response fitted."""
    mixed = mismatched(batch_of((PROMPT, [4]), ([7], ANSWER)), LIMIT)
    assert [raw(mixed, i) for i in range(2)] == [[1, 2, 3, 4], [7, 4]]
    assert mixed["loss_mask"].sum(1).tolist() == [1, 1]


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_kto_mismatch_pairs_no_prompt_with_its_own_response(size: int) -> None:
    """Reported as TRL #1911: reversing a batch of odd size leaves the middle pair matched."""
    batch = batch_of(*(([10 + i], [20 + i]) for i in range(size)))
    answers = [raw(mismatched(batch, LIMIT), i)[1] - 20 for i in range(size)]
    assert answers == [size - 1, *range(size - 1)]


def test_kto_mismatch_refuses_a_single_row() -> None:
    with pytest.raises(TrainingError, match="another row's response, got a step of one row"):
        reference_point(engine_of([0.0]), batch_of(([10], [20])), 100)
    assert reference_point(engine_of([0.0] * 2), batch_of(([10], [20]), ([11], [21])), 100) == 0.0
