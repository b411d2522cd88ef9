"""DPO: direct preference optimisation and the variants of its sigmoid loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch

from titanrl.ops.dpo import (
    SCORED,
    SMOOTHED,
    VARIANTS,
    Divergence,
    Hyperparameters,
    PairRatios,
    Variant,
    score,
)
from titanrl.ops.masked import where0
from titanrl.ops.preference import per_row, shared_length_weight, split_pairs, valid_pairs
from titanrl.ops.sequence import sequence_mean, sequence_sum
from titanrl.protocols import TokenLoss
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import PolicyOutputs


@register("loss", "dpo")
@dataclass(frozen=True, slots=True, kw_only=True)
class DPO:
    """Direct preference optimisation with its variants, per pair, [B, 1].

    Rows 2i and 2i + 1 are the chosen and the rejected response. pc and pr are the sums of l over the loss
    tokens of the chosen and the rejected row, rc and rr those of l_ref, nc and nr their numbers of loss
    tokens; c = pc - rc, r = pr - rr, e = label_smoothing, ls(x) = log sig(x) and h = beta (score(c) -
    score(r)). The score depends on the divergence: reverse_kl x, forward_kl -exp(-x), js ls(x), alpha
    exp((alpha - 1) x) / (alpha - 1).

        sigmoid       -(1-e) ls(h) - e ls(-h)                                 2305.18290
        robust        ( -(1-e) ls(h) + e ls(-h) ) / (1 - 2e)                  2403.00409
        hinge         max(0, 1 - h)                                           2305.10425
        exo_pair      q (ls(h) - log(1-e)) + (1-q)(ls(-h) - log e), q=sig(h)  2402.00856
        discopop      (1-g)(-ls(h)) + g exp(-h), g = sig(h/tau)               2406.08414
        nca_pair      -ls(beta c) - ls(-beta c)/2 - ls(-beta r)/2             2402.05369
        bco_pair      -ls(beta c) - ls(-beta r)                               2404.04656
        sppo_hard     (c - 1/(2 beta))^2 + (r + 1/(2 beta))^2                 2405.00675
        apo_zero      1 - sig(beta c) + sig(beta r)                           2408.06266
        apo_down      sig(beta c) + 1 - sig(h)                                2408.06266
        sigmoid_norm  -ls(beta (c/nc - r/nr))
        aot           -(1-e) ls(d) - e ls(-d), d = beta (x_(k) - y_(k)), the k-th smallest of
                      x = pc - pr and of y = rc - rr over the valid pairs     2406.05882
        aot_unpaired  the same with x = c, y = r                              2406.05882

    With `variants`, the loss is the sum of these variants times their `weights`, and nll_coefficient adds
    -nll_coefficient pc/nc. Both rows carry the loss of their pair; a pair with an empty side gets 0. Where
    the policy equals the reference, sigmoid gives ln 2. Exponents are clamped at 80. In aot, the pair that
    holds x_(k) carries the k-th loss, and the gradient also flows into the pair that holds y_(k). These two
    variants couple all pairs of an optimizer step, so all of them have to be in one micro-batch to match the
    paper.

    Metrics: accuracy (c > r), chosen_reward = beta c, rejected_reward = beta r, margin = beta (c - r), each
    [B, 1].

    Source: DPO 2305.18290 and the table; sums of variants MPO 2411.10442; likelihood term iterative RPO
    2404.19733; divergences f-DPO 2309.16240; ld_alpha LD-DPO 2409.06411; wpo
    2406.11827.
    """

    beta: Annotated[float, Range("(0, inf)")] = 0.1
    """Strength of the regularisation towards the reference policy."""
    variant: Variant = "sigmoid"
    """Row of the table above."""
    label_smoothing: Annotated[float, Range("[0, 0.5)")] = 0.0
    """Probability e that a label is wrong; only for sigmoid, robust, exo_pair (where it must be > 0) and
    the two aot variants."""
    divergence: Divergence = "reverse_kl"
    """Divergence to the reference policy; values other than reverse_kl only for sigmoid, robust, hinge,
    exo_pair and discopop."""
    alpha: Annotated[float, Range("(-inf, inf)")] = 0.5
    """Order of the alpha divergence; 1 is reverse_kl."""
    ld_alpha: Annotated[float | None, Range("[0, 1]")] = None
    """LD-DPO: weight of the tokens beyond the length of the pair's shorter response; omitted: 1."""
    weighting: Literal["none", "wpo"] = "none"
    """wpo multiplies the loss by sg(w_c w_r), w = exp(mean_i(l - log sum_pi_squared))."""
    tau: Annotated[float, Range("(0, inf)")] = 0.05
    """Temperature of the gate of discopop."""
    nll_coefficient: Annotated[float, Range("[0, inf)")] = 0.0
    """Coefficient of the chosen response's negative log-likelihood, -pc/nc."""
    variants: tuple[Variant, ...] | None = None
    """Rows of the table that are summed, in place of `variant`; omitted: off."""
    weights: Annotated[tuple[float, ...] | None, Range("(-inf, inf)")] = None
    """Weight of each of `variants`; omitted: 1 each."""
    paired: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.weights is not None and len(self.weights) != len(self.variants or ()):
            raise ValueError(
                f"weights must have one number per entry of variants, {len(self.variants or ())}, got "
                f"{len(self.weights)}."
            )
        if not self._terms:
            raise ValueError("variants must name at least one variant, got none; leave it out.")
        names = [variant for variant, _ in self._terms]
        label = " + ".join(map(repr, names))
        if "exo_pair" in names and not self.label_smoothing:
            raise ValueError("label_smoothing must be > 0 for variant 'exo_pair', got 0.0.")
        if self.label_smoothing and not SMOOTHED.intersection(names):
            raise ValueError(f"label_smoothing is not used by variant {label}; leave it out.")
        if self.divergence != "reverse_kl" and not SCORED.intersection(names):
            raise ValueError(f"divergence must be 'reverse_kl' for variant {label}, got {self.divergence!r}.")
        if self.alpha != 0.5 and self.divergence != "alpha":
            raise ValueError(f"alpha is not used by divergence {self.divergence!r}; leave it out.")
        if self.tau != 0.05 and "discopop" not in names:
            raise ValueError(f"tau is not used by variant {label}; leave it out.")

    @property
    def _terms(self) -> tuple[tuple[Variant, float], ...]:
        """The variants that are summed, with their weights."""
        if self.variants is None:
            return ((self.variant, 1.0),)
        return tuple(zip(self.variants, self.weights or [1.0] * len(self.variants), strict=True))

    @property
    def in_keys(self) -> tuple[str, ...]:
        return ("ref_logprob",)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("sum_pi_squared",) if self.weighting == "wpo" else ()

    @property
    def couples_step(self) -> bool:
        """Whether the loss of one pair depends on the other pairs of the optimizer step."""
        return any(variant in ("aot", "aot_unpaired") for variant, _ in self._terms)

    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
        mask = batch["loss_mask"]
        valid = valid_pairs(mask)
        logprob, ref_logprob = where0(mask, policy.logprob), where0(mask, batch["ref_logprob"])
        if self.ld_alpha is not None:
            weight = shared_length_weight(mask, self.ld_alpha)
            logprob, ref_logprob = logprob * weight, ref_logprob * weight
        policy_chosen, policy_rejected = split_pairs(sequence_sum(logprob, mask))
        ref_chosen, ref_rejected = split_pairs(sequence_sum(ref_logprob, mask))
        chosen_tokens, rejected_tokens = split_pairs(mask.sum(-1, keepdim=True).clamp_min(1))
        # Subtract per token first: the two sums are large and nearly equal.
        chosen, rejected = split_pairs(sequence_sum(logprob - ref_logprob, mask))
        pair = PairRatios(
            logit=self.beta
            * (score(chosen, self.divergence, self.alpha) - score(rejected, self.divergence, self.alpha)),
            chosen=chosen,
            rejected=rejected,
            policy_gap=policy_chosen - policy_rejected,
            ref_gap=ref_chosen - ref_rejected,
            chosen_tokens=chosen_tokens,
            rejected_tokens=rejected_tokens,
            valid=valid,
        )
        parameters = Hyperparameters(self.beta, self.label_smoothing, self.tau)
        terms = [weight * VARIANTS[variant](pair, parameters) for variant, weight in self._terms]
        loss = terms[0] if len(terms) == 1 else torch.stack(terms).sum(0)
        if self.weighting == "wpo":
            loss = loss * self._wpo_weight(policy, mask)
        if self.nll_coefficient:
            likelihood, _ = split_pairs(sequence_mean(policy.logprob, mask))
            loss = loss - self.nll_coefficient * likelihood
        metrics = {
            "accuracy": (chosen > rejected).float(),
            "chosen_reward": self.beta * chosen.detach(),
            "rejected_reward": self.beta * rejected.detach(),
            "margin": self.beta * (chosen - rejected).detach(),
        }
        return TokenLoss(per_row(loss, valid), {k: per_row(v, valid) for k, v in metrics.items()})

    def _wpo_weight(self, policy: PolicyOutputs, mask: torch.Tensor) -> torch.Tensor:
        """Returns the WPO weight of each pair, [P, 1]: its likelihood under the policy; no gradient."""
        assert policy.sum_pi_squared is not None
        collision = torch.where(mask, policy.sum_pi_squared.detach(), 1.0).log()
        chosen, rejected = split_pairs(sequence_mean(where0(mask, policy.logprob.detach()) - collision, mask))
        return (chosen + rejected).exp()
