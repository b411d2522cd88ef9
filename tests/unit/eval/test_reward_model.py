"""Accuracy, calibration and length of scores, against numbers computed by hand."""

from __future__ import annotations

from math import log

import pytest
import torch
from tensordict import TensorDict

from titanrl.eval.reward_model import score_quality


def batch(scores: list[float], lengths: list[int], **keys: torch.Tensor) -> TensorDict:
    """Returns rows whose last loss token has the score; other loss tokens have 9."""
    place = torch.arange(1, 8).expand(len(scores), -1)
    length = torch.tensor(lengths)[:, None]
    mask = (place > 2) & (place <= length + 2)
    value = torch.where(place == length + 2, torch.tensor(scores)[:, None], torch.where(mask, 9.0, 0.0))
    groups = {"group_id": torch.arange(len(scores)) // 2} | keys
    return TensorDict({"value": value, "loss_mask": mask, **groups}, batch_size=[len(scores)])


def test_pair_metrics_are_accuracy_confidence_and_length_baseline() -> None:
    # Gaps log 3, log 3, -log 19, 0: the model is sure by .75, .75, .95, .5; right, right, wrong, tie.
    scores = [log(3.0), 0.0, 1.0 + log(3.0), 1.0, -log(19.0), 0.0, 2.0, 2.0]
    found = score_quality(batch(scores, [3, 1, 2, 1, 1, 1, 2, 4]), paired=True)
    gaps, longer = [log(3.0), log(3.0), -log(19.0), 0.0], [2.0, 1.0, 0.0, -2.0]
    norm = (sum(gap**2 for gap in gaps) * sum(more**2 for more in longer)) ** 0.5
    expected = {
        "eval/accuracy": 2.5 / 4,
        "eval/length_baseline_accuracy": 2.5 / 4,
        "eval/length_correlation": 3 * log(3.0) / norm,
        "eval/accuracy_at_50_60": 0.5,
        "eval/accuracy_at_70_80": 1.0,
        "eval/accuracy_at_90_100": 0.0,
        "eval/calibration_error": 0.25 * 0.0 + 0.5 * 0.25 + 0.25 * 0.95,
        "eval/score_mean": sum(scores) / 8,
        "eval/score_std": float(torch.tensor(scores, dtype=torch.float64).std(correction=0)),
    }
    assert found == pytest.approx(expected, abs=1e-6)


def test_ranked_responses_make_every_unequal_pair_of_a_group() -> None:
    keys = {"reward": torch.tensor([1.0, 0.0, 1.0, 5.0]), "group_id": torch.tensor([7, 7, 7, 2])}
    found = score_quality(batch([2.0, 1.0, 0.0, -9.0], [1, 1, 1, 1], **keys), paired=False)
    assert found["eval/accuracy"] == 0.5
    assert "eval/length_correlation" not in found  # Lengths do not differ.
    assert found["eval/length_baseline_accuracy"] == 0.5


def test_rows_without_response_are_in_no_pair() -> None:
    found = score_quality(batch([1.0, 0.0, 0.0, 5.0], [1, 2, 0, 1]), paired=True)
    assert found["eval/accuracy"] == 1.0
    assert found["eval/score_mean"] == pytest.approx(2.0)


def test_process_scores_are_calibrated_against_soft_labels() -> None:
    rows = batch([0.0], [2])
    rows["value"] = torch.tensor([[0.0, 0.0, log(4.0), -log(4.0), 0.0, 0.0, 0.0]])
    rows["token_reward"] = torch.tensor([[9.0, 9.0, 0.9, 0.3, 9.0, 9.0, 9.0]])
    found = score_quality(rows, paired=False)
    # Sure by .8 both times; right by .9 and .7.
    assert found == pytest.approx({"eval/calibration_error": 0.0, "eval/accuracy_at_80_90": 0.8}, abs=1e-6)


def test_rows_without_labels_have_only_a_mean_score() -> None:
    assert score_quality(batch([1.0, 3.0], [1, 1]), paired=False) == {
        "eval/score_mean": 2.0,
        "eval/score_std": 1.0,
    }
