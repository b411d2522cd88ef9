"""Quality of a reward model's scores on held-out data: accuracy, calibration, length bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from titanrl.algorithm.pairs import preference_pairs
from titanrl.engine import collectives
from titanrl.ops.sequence import at_last_loss_token

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.engine import Engine

__all__ = ["reward_model_metrics", "score_quality"]

BINS = 5
"""Number of equally wide bins of confidence between 1/2 and 1."""


def reward_model_metrics(engine: Engine, rows: TensorDict, *, paired: bool) -> dict[str, float]:
    """Returns the quality of the trained value model's scores of the held-out rows; a collective.

    Args:
        engine: its policy is the value model.
        rows: this rank's share of the batch, in complete groups.
        paired: whether rows 2i are preferred to rows 2i + 1.
    """
    scored = rows.copy().set("value", engine.score(rows, ("value",))["value"])
    batch = collectives.gather(scored, engine.dp_group, engine.dp_degree)
    return score_quality(batch, paired=paired)


def score_quality(batch: TensorDict, *, paired: bool) -> dict[str, float]:
    """Returns the ``eval/...`` metrics of scores; a metric without responses to compare is absent.

    Responses are compared within their group: the chosen with the rejected, or, where the batch has
    ``reward``, each with every worse one. For labelled process steps (``token_reward``) only the calibration
    is computed.

    Args:
        batch: [N, L] value (0 where masked), loss_mask; [N] group_id, and reward where the data has it.
        paired: whether rows 2i are preferred to rows 2i + 1.
    """
    mask = batch["loss_mask"]
    if "token_reward" in batch:
        return _calibration(batch["value"][mask].double().sigmoid(), batch["token_reward"][mask].double())
    score, length = at_last_loss_token(batch["value"], mask).double(), mask.sum(1).double()
    nonempty = mask.any(1)
    if not nonempty.any():
        return {}
    statistics = {"score_mean": score[nonempty].mean(), "score_std": score[nonempty].std(correction=0)}
    if paired:
        better = torch.arange(0, len(score), 2)
        worse = better + 1
    elif "reward" in batch:
        better, worse = preference_pairs(batch["reward"], batch["group_id"]).unbind(1)
    else:
        better = worse = torch.zeros(0, dtype=torch.int64)
    both = nonempty[better] & nonempty[worse]
    better, worse = better[both], worse[both]
    metrics = {f"eval/{name}": float(value) for name, value in statistics.items()}
    if not len(better):
        return metrics
    margin, extra_length = score[better] - score[worse], length[better] - length[worse]
    metrics |= {
        "eval/accuracy": _share_positive(margin),
        "eval/length_baseline_accuracy": _share_positive(extra_length),
    }
    norm = float(margin.norm() * extra_length.norm())
    if norm > 0:
        metrics["eval/length_correlation"] = float(margin @ extra_length) / norm
    return metrics | _calibration(margin.sigmoid(), torch.ones_like(margin))


def _share_positive(margin: torch.Tensor) -> float:
    """Returns the share of positive numbers; zeros count half."""
    return float(((margin.sign() + 1) / 2).mean())


def _calibration(probability: torch.Tensor, label: torch.Tensor) -> dict[str, float]:
    """Returns the accuracy per confidence bin, and the expected calibration error.

        confidence = max(p, 1 - p);  correct = y where p > 1/2, 1 - y where p < 1/2, else 1/2
        error = sum over bins b of n_b / n |mean correct - mean confidence|

    Args:
        probability: [P] predicted probability of label 1.
        label: [P] in [0, 1].

    Source: expected calibration error, arXiv 1706.04599 section 3.
    """
    confidence = torch.maximum(probability, 1 - probability)
    correct = torch.where(probability > 0.5, label, 1 - label)
    correct = torch.where(probability == 0.5, 0.5, correct)
    bin_index = ((confidence - 0.5) * 2 * BINS).long().clamp(max=BINS - 1)
    metrics, error = {}, 0.0
    for number in range(BINS):
        inside = bin_index == number
        if not inside.any():
            continue
        share, accuracy = float(inside.double().mean()), float(correct[inside].mean())
        error += share * abs(accuracy - float(confidence[inside].mean()))
        low, high = (50 + 50 * bound // BINS for bound in (number, number + 1))
        metrics[f"eval/accuracy_at_{low}_{high}"] = accuracy
    return {"eval/calibration_error": error, **metrics} if len(bin_index) else {}
