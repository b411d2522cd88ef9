"""The table of DPO variants: each turns the log-ratios of preference pairs into one loss per pair.

``ls`` is log sigmoid, e the label smoothing, h = beta (score(c) - score(r)); all tensors are [P, 1], P pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch

from titanrl.ops.preference import smoothed_sigmoid_loss
from titanrl.ops.sigmoid import sigmoid

__all__ = [
    "SCORED",
    "SMOOTHED",
    "VARIANTS",
    "Divergence",
    "Hyperparameters",
    "PairRatios",
    "Variant",
    "score",
]

Variant = Literal[
    "sigmoid",
    "robust",
    "hinge",
    "exo_pair",
    "discopop",
    "nca_pair",
    "bco_pair",
    "sppo_hard",
    "apo_zero",
    "apo_down",
    "sigmoid_norm",
    "aot",
    "aot_unpaired",
]
Divergence = Literal["reverse_kl", "forward_kl", "js", "alpha"]

EXPONENT_CLAMP = 80.0
"""Bound of every exponent, so that float32 stays finite."""


class PairRatios(NamedTuple):
    """The quantities of preference pairs that a variant may use."""

    logit: torch.Tensor
    """h = beta (score(c) - score(r))."""
    chosen: torch.Tensor
    """c, the chosen row's summed log-ratio to the reference, nats."""
    rejected: torch.Tensor
    """r, the same for the rejected row."""
    policy_gap: torch.Tensor
    """pc - pr, the policy's summed log-probs, chosen minus rejected."""
    ref_gap: torch.Tensor
    """rc - rr, the same for the reference."""
    chosen_tokens: torch.Tensor
    """nc, at least 1."""
    rejected_tokens: torch.Tensor
    """nr, at least 1."""
    valid: torch.Tensor
    """Bool: both rows have a loss token."""


class Hyperparameters(NamedTuple):
    """Fields of the DPO loss that variants use."""

    beta: float
    label_smoothing: float
    tau: float


def score(ratio: torch.Tensor, divergence: Divergence, alpha: float) -> torch.Tensor:
    """Returns f-DPO's implicit reward of a summed log-ratio, f'(ratio) up to a constant (2309.16240).

    The exponential scores may be huge, as the divergence has it. Exponents are clamped at 80.
    """
    if divergence == "js":
        return torch.nn.functional.logsigmoid(ratio)
    if divergence == "forward_kl":
        return -(-ratio).clamp(max=EXPONENT_CLAMP).exp()
    if divergence == "alpha" and abs(alpha - 1) >= 1e-6:
        return ((alpha - 1) * ratio).clamp(max=EXPONENT_CLAMP).exp() / (alpha - 1)
    return ratio


def _sigmoid(pair: PairRatios, parameters: Hyperparameters) -> torch.Tensor:
    return smoothed_sigmoid_loss(pair.logit, parameters.label_smoothing)


def _robust(pair: PairRatios, parameters: Hyperparameters) -> torch.Tensor:
    e, ls = parameters.label_smoothing, torch.nn.functional.logsigmoid
    return (e * ls(-pair.logit) - (1 - e) * ls(pair.logit)) / (1 - 2 * e)


def _hinge(pair: PairRatios, parameters: Hyperparameters) -> torch.Tensor:
    return (1 - pair.logit).clamp_min(0)


def _exo_pair(pair: PairRatios, parameters: Hyperparameters) -> torch.Tensor:
    e, ls = parameters.label_smoothing, torch.nn.functional.logsigmoid
    wins, loses = sigmoid(pair.logit), sigmoid(-pair.logit)
    return wins * (ls(pair.logit) - math.log(1 - e)) + loses * (ls(-pair.logit) - math.log(e))


def _discopop(pair: PairRatios, parameters: Hyperparameters) -> torch.Tensor:
    gate = sigmoid(pair.logit / parameters.tau)
    logistic = -torch.nn.functional.logsigmoid(pair.logit)
    return (1 - gate) * logistic + gate * (-pair.logit).clamp(max=EXPONENT_CLAMP).exp()


def _nca_pair(pair: PairRatios, parameters: Hyperparameters) -> torch.Tensor:
    ls, chosen, rejected = (
        torch.nn.functional.logsigmoid,
        parameters.beta * pair.chosen,
        parameters.beta * pair.rejected,
    )
    return -ls(chosen) - (ls(-chosen) + ls(-rejected)) / 2


def _bco_pair(pair: PairRatios, parameters: Hyperparameters) -> torch.Tensor:
    ls = torch.nn.functional.logsigmoid
    return -ls(parameters.beta * pair.chosen) - ls(-parameters.beta * pair.rejected)


def _sppo_hard(pair: PairRatios, parameters: Hyperparameters) -> torch.Tensor:
    target = 1 / (2 * parameters.beta)
    return (pair.chosen - target).square() + (pair.rejected + target).square()


def _apo_zero(pair: PairRatios, parameters: Hyperparameters) -> torch.Tensor:
    return sigmoid(-parameters.beta * pair.chosen) + sigmoid(parameters.beta * pair.rejected)


def _apo_down(pair: PairRatios, parameters: Hyperparameters) -> torch.Tensor:
    return sigmoid(parameters.beta * pair.chosen) + sigmoid(-pair.logit)


def _sigmoid_norm(pair: PairRatios, parameters: Hyperparameters) -> torch.Tensor:
    margin = pair.chosen / pair.chosen_tokens - pair.rejected / pair.rejected_tokens
    return smoothed_sigmoid_loss(parameters.beta * margin, 0.0)


def _aot(pair: PairRatios, parameters: Hyperparameters) -> torch.Tensor:
    return _sorted_sigmoid(pair.policy_gap, pair.ref_gap, pair.valid, parameters)


def _aot_unpaired(pair: PairRatios, parameters: Hyperparameters) -> torch.Tensor:
    return _sorted_sigmoid(pair.chosen, pair.rejected, pair.valid, parameters)


def _sorted_sigmoid(
    x: torch.Tensor, y: torch.Tensor, valid: torch.Tensor, parameters: Hyperparameters
) -> torch.Tensor:
    """Compares the k-th smallest x with the k-th smallest y over valid pairs; the loss is at x's pair."""

    def order(values: torch.Tensor) -> torch.Tensor:
        return torch.where(valid, values.detach(), torch.inf).argsort(dim=0, stable=True)

    positions = torch.arange(x.shape[0], device=x.device)[:, None]
    rank = torch.zeros_like(positions).scatter(0, order(x), positions)
    partner = order(y).gather(0, rank)
    return smoothed_sigmoid_loss(parameters.beta * (x - y.gather(0, partner)), parameters.label_smoothing)


VARIANTS: dict[Variant, Callable[[PairRatios, Hyperparameters], torch.Tensor]] = {
    "sigmoid": _sigmoid,
    "robust": _robust,
    "hinge": _hinge,
    "exo_pair": _exo_pair,
    "discopop": _discopop,
    "nca_pair": _nca_pair,
    "bco_pair": _bco_pair,
    "sppo_hard": _sppo_hard,
    "apo_zero": _apo_zero,
    "apo_down": _apo_down,
    "sigmoid_norm": _sigmoid_norm,
    "aot": _aot,
    "aot_unpaired": _aot_unpaired,
}
SMOOTHED: frozenset[Variant] = frozenset({"sigmoid", "robust", "exo_pair", "aot", "aot_unpaired"})
"""Variants that read label_smoothing."""
SCORED: frozenset[Variant] = frozenset({"sigmoid", "robust", "hinge", "exo_pair", "discopop"})
"""Variants that read only h, and so allow every divergence."""
