"""How far a value model's scores can be trusted on held-out data: right, calibrated, or just long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from titanrl.algorithm.pairs import preference_pairs
from titanrl.engine import collectives
from titanrl.ops.sequence import at_last_loss_token

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.training.session import Session

__all__ = ["held_out_scores", "score_quality"]

BINS = 5
"""Equally wide bins of confidence between 1/2 and 1."""


def held_out_scores(session: Session[Any], rows: TensorDict) -> dict[str, float]:
    """Returns the quality of the trained value model's scores of the held-out rows; a collective.

    Args:
        rows: this rank's share of the batch, whole groups.
    """
    engine = session.engine
    scored = rows.copy().set("value", engine.score(rows, ("value",))["value"])
    whole = collectives.gather(scored, engine.dp_group, engine.dp_degree)
    return score_quality(whole, paired=getattr(session.objective.loss, "paired", False))


def score_quality(batch: TensorDict, *, paired: bool) -> dict[str, float]:
    """Returns ``eval/...`` numbers of scores; those that have nothing to compare are left out.

    Answers are compared with the others of their group: the chosen with the rejected, or, where the batch
    has ``reward``, each with every worse one. Of judged steps (``token_reward``) only the calibration is
    known.

    Args:
        batch: [N, L] value (0 where masked), loss_mask; [N] group_id; labels of the answers.
        paired: whether rows 2i beat rows 2i + 1.
    """
    mask = batch["loss_mask"]
    if "token_reward" in batch:
        return _calibration(batch["value"][mask].double().sigmoid(), batch["token_reward"][mask].double())
    score, length = at_last_loss_token(batch["value"], mask).double(), mask.sum(1).double()
    live = mask.any(1)
    if not live.any():
        return {}
    found = {"score_mean": score[live].mean(), "score_std": score[live].std(correction=0)}
    if paired:
        better = torch.arange(0, len(score), 2)
        worse = better + 1
    elif "reward" in batch:
        better, worse = preference_pairs(batch["reward"], batch["group_id"]).unbind(1)
    else:
        better = worse = torch.zeros(0, dtype=torch.int64)
    both = live[better] & live[worse]
    better, worse = better[both], worse[both]
    metrics = {f"eval/{name}": float(value) for name, value in found.items()}
    if not len(better):
        return metrics
    gap, longer = score[better] - score[worse], length[better] - length[worse]
    metrics |= {
        "eval/accuracy": _share_positive(gap),
        "eval/length_baseline_accuracy": _share_positive(longer),
    }
    norm = float(gap.norm() * longer.norm())
    if norm > 0:
        metrics["eval/length_correlation"] = float(gap @ longer) / norm
    return metrics | _calibration(gap.sigmoid(), torch.ones_like(gap))


def _share_positive(gap: torch.Tensor) -> float:
    """Returns the share of numbers above 0; those that are 0 count half."""
    return float(((gap.sign() + 1) / 2).mean())


def _calibration(probability: torch.Tensor, label: torch.Tensor) -> dict[str, float]:
    """Returns how often the model is right, by how sure it is, and the mean distance of the two.

        confidence = max(p, 1 - p);  right = y where p > 1/2, 1 - y where p < 1/2, else 1/2
        error = sum over bins b of n_b / n |mean right - mean confidence|

    Args:
        probability: [P] of the label being 1. label: [P] in [0, 1].

    Source: expected calibration error, arXiv 1706.04599 section 3.
    """
    confidence = torch.maximum(probability, 1 - probability)
    right = torch.where(probability > 0.5, label, 1 - label)
    right = torch.where(probability == 0.5, 0.5, right)
    place = ((confidence - 0.5) * 2 * BINS).long().clamp(max=BINS - 1)
    metrics, error = {}, 0.0
    for number in range(BINS):
        inside = place == number
        if not inside.any():
            continue
        share, accuracy = float(inside.double().mean()), float(right[inside].mean())
        error += share * abs(accuracy - float(confidence[inside].mean()))
        low, high = (50 + 50 * bound // BINS for bound in (number, number + 1))
        metrics[f"eval/accuracy_at_{low}_{high}"] = accuracy
    return {"eval/calibration_error": error, **metrics} if len(place) else {}
