"""The [algorithm] table: which components turn a sampled batch into an update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from titanrl.algorithm.reward_scaling import RewardScaling
from titanrl.protocols import (
    AdvantageEstimator,
    Aggregation,
    Correction,
    Filter,
    KLController,
    KLEstimator,
    PolicyLoss,
)
from titanrl.registry import declared, name_of
from titanrl.registry.decode import Component, Flattened, build

__all__ = ["Algorithm", "KLTerm"]

TURN_KEYS = frozenset({"turn_id", "state_id", "step_reward"})
"""Batch keys whose reader compares the turns of a rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KLTerm:
    """The one KL term: ``+ beta k`` in the loss, ``- beta k`` in the reward or in the advantage.

    The estimator's own keys (gradient, input_clamp, output_clamp) belong to the same table.
    """

    estimator: Annotated[KLEstimator, Component("kl")]
    """k(logprob, ref_logprob)."""
    placement: Literal["loss", "reward", "advantage"] = "loss"
    """Where the term is added: the loss, with a gradient, or token_reward or advantage, without."""
    coefficient: float | None = None
    """Constant beta, >= 0; either this or a controller."""
    controller: Annotated[KLController, Component("kl_controller")] = None  # type: ignore[assignment]
    """Controller of beta; either this or a coefficient, which is the controller `fixed`."""
    importance_weight: bool = False
    """Whether k is multiplied by rho = exp(l - l_old): unbiased off-policy; only in the loss."""

    def __post_init__(self) -> None:
        has_controller: bool = self.controller is not None
        if (self.coefficient is not None) == has_controller:
            got = "both" if has_controller else "neither"
            raise ValueError(f"coefficient or a controller table is needed, got {got}; give exactly one.")
        if self.coefficient is not None:
            fixed = build("kl_controller", {"name": "fixed", "coefficient": self.coefficient})
            object.__setattr__(self, "controller", fixed)
        if self.importance_weight and self.placement != "loss":
            raise ValueError(
                f"importance_weight must be false for placement {self.placement!r}, got true; "
                "only a term in the loss can be weighted by the ratio."
            )
        gradient = getattr(self.estimator, "gradient", "pathwise")
        if self.placement != "loss" and gradient != "pathwise":
            raise ValueError(
                f"gradient must be 'pathwise' for placement {self.placement!r}, got {gradient!r}; "
                "a term outside the loss has no gradient."
            )
        if controls_entropy(self.controller):
            raise ValueError(
                f"controller.name must control a KL term, got {name_of(self.controller)!r}; "
                "move it to [algorithm.entropy]."
            )

    @property
    def derived(self) -> tuple[str, ...]:
        """Keys that are computed from another key, so that a dumped table omits them."""
        return ("controller",) if self.coefficient is not None else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """The components that compute advantages, corrections, loss weights and the loss.

    The update minimizes ``sum(loss_weight * (c * loss + beta * k - eta * entropy))``, where c is the product
    of the corrections.
    """

    loss: Annotated[PolicyLoss, Component("loss")]
    """Policy loss per token."""
    aggregation: Annotated[Aggregation, Component("aggregation")]
    """Weight of each loss token of an optimizer step."""
    advantage: Annotated[AdvantageEstimator, Component("advantage")] | None = None
    """Estimator of advantages from rewards; omitted for losses that read none."""
    reward_scaling: RewardScaling | None = None
    """Scaling of rewards before advantages are computed; omitted: none."""
    kl: Annotated[KLTerm, Flattened("kl", "estimator")] | None = None
    """KL term to the reference policy."""
    entropy: Annotated[KLController, Component("kl_controller")] | None = None
    """Controller of eta, the coefficient of the entropy bonus; eta > 0 increases the entropy."""
    correction: tuple[Annotated[Correction, Component("correction")], ...] = ()
    """Corrections of the sampler/trainer mismatch: weights multiply, keep masks are and-ed."""
    filter: tuple[Annotated[Filter, Component("filter")], ...] = ()
    """Filters that select the groups to train on; a group must pass all of them."""
    denominator: Literal["trainable", "kept"] = "trainable"
    """Tokens that the aggregation counts: all loss tokens, or only those that the corrections keep."""
    old_logprob: Literal["recompute", "sampler"] = "recompute"
    """The old policy: the trainer's log-probs before the update, or the sampler's (bypass mode)."""

    def __post_init__(self) -> None:
        if self.denominator == "kept" and not self.correction:
            raise ValueError(
                "denominator must be 'trainable' without a [[algorithm.correction]], got 'kept'; "
                "without one, no token is dropped and both are the same."
            )

    @property
    def compares_groups(self) -> bool:
        """Whether advantages compare the responses to one prompt.

        An estimator class that does not compare them declares ``is_group_relative = False``.
        """
        return self.advantage is not None and declared(self.advantage, "is_group_relative")

    @property
    def compares_turns(self) -> bool:
        """Whether the advantage compares turns of a rollout, so that each turn is a row of its own."""
        return bool(TURN_KEYS.intersection(declared(self.advantage, "in_keys")))

    @property
    def pairs_responses(self) -> bool:
        """Whether the loss compares the two rows of a pair."""
        return bool(declared(self.loss, "paired"))

    @property
    def kl_in_loss(self) -> KLTerm | None:
        """The KL term if it is part of the loss."""
        return self.kl if self.kl is not None and self.kl.placement == "loss" else None


def controls_entropy(controller: Any) -> bool:
    """Whether the controller's input is the policy's entropy rather than a KL."""
    return bool(declared(controller, "controls") == "entropy")
