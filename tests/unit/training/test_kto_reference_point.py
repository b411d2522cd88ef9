"""KTO's reference point: answers rotated by one, one number for all rows, clamped after the mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tests.unit.training.sessions import OneProcess, session_of
from titanrl.errors import TrainingError
from titanrl.training.kto_reference_point import mismatched, reference_point
from titanrl.training.stages import score_models


def batch_of(*rows: tuple[list[int], list[int]]) -> TensorDict:
    """Returns rows of (prompt, answer), the answer trained."""
    length = max(len(prompt) + len(answer) for prompt, answer in rows) - 1
    ids, labels = (
        torch.zeros(len(rows), length, dtype=torch.int64),
        torch.zeros(len(rows), length, dtype=torch.int64),
    )
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    for i, (prompt, answer) in enumerate(rows):
        raw, end = torch.tensor(prompt + answer), len(prompt) + len(answer) - 1
        ids[i, :end], labels[i, :end] = raw[:-1], raw[1:]
        mask[i, len(prompt) - 1 : end] = True
    return TensorDict(
        {"input_ids": ids, "labels": labels, "loss_mask": mask, "row_id": torch.arange(len(rows))},
        batch_size=[len(rows)],
    )


def raw(batch: TensorDict, row: int) -> list[int]:
    """Returns the ids of a row up to its last trained one."""
    last = int(batch["loss_mask"][row].nonzero()[-1, 0])
    return [int(batch["input_ids"][row, 0]), *batch["labels"][row, : last + 1].tolist()]


ROWS = (([1, 2, 3], [11]), ([4], [12, 13, 14]), ([5, 6], [15, 16]))


def test_each_prompt_gets_the_response_of_the_previous_row() -> None:
    mixed = mismatched(batch_of(*ROWS), 100)
    assert [raw(mixed, i) for i in range(3)] == [[1, 2, 3, 15, 16], [4, 11], [5, 6, 12, 13, 14]]
    assert [int(mask.sum()) for mask in mixed["loss_mask"]] == [2, 1, 3]
    assert mixed["group_id"].tolist() == [0, 1, 2], "rows that share no prompt are no group"


def test_masked_tokens_inside_a_response_stay_masked() -> None:
    batch = batch_of(*ROWS)
    batch["loss_mask"][1, 1] = False
    mixed = mismatched(batch, 100)
    assert raw(mixed, 2) == [5, 6, 12, 13, 14]
    assert mixed["loss_mask"][2].tolist() == [False, True, False, True]


def test_mismatched_rows_are_truncated_at_the_end() -> None:
    mixed = mismatched(batch_of(*ROWS), 4)
    assert [raw(mixed, i) for i in range(3)] == [[1, 2, 3, 15], [4, 11], [5, 6, 12, 13]]


def engine_of(log_ratios: list[float]) -> Any:
    """Return an engine whose policy is ``log_ratios`` above its reference, per row, on the first token."""

    def score(rows: TensorDict) -> dict[str, torch.Tensor]:
        first = rows["loss_mask"] & (rows["loss_mask"].cumsum(1) == 1)
        return {"logprob": torch.where(first, torch.tensor(log_ratios)[:, None] - 1.0, -1.0)}

    def ref(rows: TensorDict) -> dict[str, torch.Tensor]:
        return {"logprob": torch.full(rows["loss_mask"].shape, -1.0)}

    return OneProcess(score=score, frozen={"reference": OneProcess(score=ref)})


@pytest.mark.parametrize(
    ("log_ratios", "point"), [([0.5, -0.1, 0.2], 0.2), ([0.5, -0.1, -1.3], 0.0), ([3.0, 0.0, 0.0], 1.0)]
)
def test_reference_point_is_the_mean_over_all_rows_clamped_at_zero(
    log_ratios: list[float], point: float
) -> None:
    assert reference_point(engine_of(log_ratios), batch_of(*ROWS), 100) == pytest.approx(point)


@pytest.mark.parametrize("is_read", [True, False])
def test_reference_point_is_scored_only_if_a_loss_reads_it(is_read: bool) -> None:
    keys = frozenset({"reference_point"} if is_read else ())
    batch = batch_of(*ROWS)
    scored = score_models(session_of(engine_of([3.0, 0.0, 0.0]), scored_keys=keys), batch, on_policy=True)
    assert ("reference_point" in scored) == is_read
    if is_read:
        assert scored["reference_point"].tolist() == [1.0] * 3
    assert "reference_point" not in batch


def test_one_row_alone_is_refused() -> None:
    with pytest.raises(TrainingError, match=r"got a step of one row; raise \[loop\] prompts_per_step"):
        reference_point(engine_of([0.0]), batch_of(ROWS[0]), 100)
