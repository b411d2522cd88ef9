"""The objective of an update: loss + KL - entropy, weighted and summed; the engine compiles it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from titanrl.ops.masked import where0
from titanrl.protocols import PolicyOutputs, TokenLoss
from titanrl.registry import declared

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import KLEstimator, PolicyLoss

__all__ = ["Objective", "compiled"]

RATIO_CLAMP = 20.0
"""Bound of the log-ratio in the importance weight of the KL term, nats."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # compared by identity: losses may have state
class Objective:
    """The weighted sum of the terms of a micro-batch, and its metrics.

        sum(loss_weight * (c * loss + beta * k * [rho] - eta * H + nu * value))

    Both are additive over micro-batches, ranks and chunks, because ``loss_weight`` contains the
    normalization. c is the batch's ``correction_weight`` (1 if absent) and multiplies the policy loss only.
    """

    loss: PolicyLoss
    kl: KLEstimator | None = None
    """Estimator of the KL term in the loss; None: no such term."""
    importance_weight: bool = False
    """Whether the KL term is multiplied by rho = exp(l - l_old); the gradient goes through both factors."""
    entropy: bool = False
    """Whether there is an entropy bonus; the entropy metric is reported whenever the head computes it."""
    on_policy: bool = False
    """Whether old_logprob comes from this forward pass: one optimizer step, rollouts of these weights."""
    measures_logprob_diff: bool = False
    """Whether to report the difference from sampler_logprob, because these weights sampled the rollouts."""
    value: PolicyLoss | None = None
    """Loss of a critic on the policy's backbone; None: no such term."""
    value_coefficient: float = 0.0
    """nu, the factor of the critic's loss."""

    @property
    def couples_group(self) -> bool:
        """Whether a loss compares the rows of a group, so that they must be computed together."""
        losses = (self.loss, self.value)
        return any(declared(loss, name) for loss in losses for name in ("paired", "couples_group"))

    def __call__(
        self, policy: PolicyOutputs, batch: TensorDict, coefficients: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, tuple[torch.Tensor, torch.Tensor]]]:
        """Returns the objective [] and its metrics, {metric: (sum [], count [])}.

        Args:
            policy: outputs of the policy, [B, L] each.
            batch: [B, L] keys, including loss_mask and loss_weight.
            coefficients: [2] float32, beta of the KL term and eta of the entropy bonus; a tensor, so that a
                schedule does not recompile the graph.
        """
        mask, weight = batch["loss_mask"], batch["loss_weight"]
        beta, eta = coefficients.unbind()
        if self.on_policy:
            batch = batch.copy().set("old_logprob", where0(mask, policy.logprob.detach()))
        token_loss, token_metrics = _token_loss(self.loss, policy, batch)
        metrics = {f"loss/{name}": value for name, value in token_metrics.items()}
        correction = batch.get("correction_weight", None)
        total = token_loss if correction is None else where0(mask, correction) * token_loss
        if self.kl is not None:
            logprob, ref_logprob = where0(mask, policy.logprob), where0(mask, batch["ref_logprob"])
            kl = self.kl(logprob, ref_logprob)
            if self.importance_weight:
                log_ratio = logprob - where0(mask, batch["old_logprob"])
                kl = kl * log_ratio.clamp(-RATIO_CLAMP, RATIO_CLAMP).exp()
            total = total + beta * where0(mask, kl)
            difference = (logprob - ref_logprob).detach()
            metrics["kl/value"] = difference
            metrics["kl/k3"] = torch.expm1(-difference) + difference
        value_loss = None
        if self.value is not None:
            value_loss, value_metrics = _token_loss(self.value, policy, batch)
            total = total + self.value_coefficient * value_loss
            metrics |= {f"critic/{name}": value for name, value in value_metrics.items()}
        if self.measures_logprob_diff:
            logprob_diff = where0(mask, policy.logprob.detach()) - where0(mask, batch["sampler_logprob"])
            metrics["sample/logprob_diff"] = logprob_diff.abs()
        if policy.entropy is not None:
            entropy = where0(mask, policy.entropy)
            metrics["loss/entropy"] = entropy
            if self.entropy:
                total = total - eta * entropy
        weight = where0(mask, weight)
        nonempty = mask.any(-1, keepdim=True)
        sums = {name: _sum(value.detach().float(), mask, nonempty) for name, value in metrics.items()}
        loss_sum = (weight * total).sum()
        one = torch.ones_like(loss_sum)
        sums["loss/total"] = (loss_sum.detach(), one)
        if value_loss is not None:
            sums["critic/loss"] = ((weight * value_loss).sum().detach(), one)
        return loss_sum, sums


def _token_loss(loss: PolicyLoss, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss:
    """Returns the token loss expanded to [B, L], 0 where masked, and its metrics unchanged."""
    result = loss(policy, batch)
    if not isinstance(result, TokenLoss) or result.loss.ndim != 2:  # A mean would broadcast without an error.
        raise TypeError(_invalid_result(loss, result))
    mask = batch["loss_mask"]
    return TokenLoss(where0(mask, result.loss.expand_as(mask)), result.metrics)


def _invalid_result(loss: PolicyLoss, result: Any) -> str:
    """Returns the message for a loss that returned another type or shape."""
    is_token_loss = isinstance(result, TokenLoss)
    got = f"a loss of shape {list(result.loss.shape)}" if is_token_loss else type(result).__name__
    return (
        f"{type(loss).__name__} must return TokenLoss(loss [B, L] or [B, 1], metrics), got {got}; "
        "leave sums and means to the aggregation."
    )


def _sum(
    metric: torch.Tensor, mask: torch.Tensor, nonempty: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (sum [], count []) of a metric: [B, L] over loss tokens, [B, 1] over non-empty rows."""
    counted = mask if metric.shape == mask.shape else nonempty
    return where0(counted, metric).sum(), counted.sum().float()


def compiled(objective: Objective, backend: str | Callable[..., Any] = "inductor") -> Callable[..., Any]:
    """Returns ``objective`` compiled as one graph for any shape; it is called like the objective.

    The graph computes value and gradient in one pass over the batch, and saves only the gradient for the
    backward pass.

    Args:
        objective: the objective.
        backend: backend of ``torch.compile``.
    """
    # torch 2.13 can silently use a stale Python float in a compiled function (pytorch issue 194976): the
    # second of two losses that differ in one float would compute the first one. Needed until torch is fixed.
    torch._dynamo.config.specialize_float = True
    entropy = ("entropy",) if objective.entropy else ()
    needs = [name for loss in (objective.loss, objective.value) for name in declared(loss, "needs")]
    names = dict.fromkeys(("logprob", *needs, *entropy))

    def with_gradient(
        inputs: Mapping[str, torch.Tensor],
        policy: PolicyOutputs,
        batch: TensorDict,
        coefficients: torch.Tensor,
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, Any]:
        batch = batch.copy().set("loss_mask", batch["loss_mask"] > 0)

        def total(inputs: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, Any]:
            return objective(policy._replace(**inputs), batch, coefficients)

        gradient, (value, sums) = torch.func.grad_and_value(total, has_aux=True)(inputs)
        return gradient, value, sums

    # Without isolation, all objectives of a process would share one limit of eight graphs.
    graph = torch.compile(  # type: ignore[call-overload]  # its overloads lack isolate_recompiles
        with_gradient, fullgraph=True, dynamic=True, backend=backend, isolate_recompiles=True
    )

    def call(
        policy: PolicyOutputs, batch: TensorDict, coefficients: torch.Tensor
    ) -> tuple[torch.Tensor, Any]:
        differentiable = {name: getattr(policy, name) for name in names}
        detached = PolicyOutputs._make(None if field is None else field.detach() for field in policy)
        # The vectorized CPU loops of torch 2.13 read bools one by one, which dominates the time.
        batch = batch.copy().set("loss_mask", batch["loss_mask"].view(torch.uint8).float())
        inputs = {name: field.detach() for name, field in differentiable.items()}
        gradient, value, sums = graph(inputs, detached, batch, coefficients)
        total = _WithGradient.apply(  # type: ignore[no-untyped-call]
            value, *gradient.values(), *differentiable.values()
        )
        return total, sums

    return call


class _WithGradient(torch.autograd.Function):
    """A scalar with a precomputed gradient."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        """Returns a copy of ``value``.

        Args:
            ctx: context of the function.
            value: the scalar [].
            tensors: the gradients with respect to the inputs, then the same number of inputs.
        """
        ctx.save_for_backward(*tensors[: len(tensors) // 2])
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # In place: autograd rejects a second backward pass, as for any freed graph.
        gradient = [each.mul_(grad_output) for each in ctx.saved_tensors]
        return (None, *(None for _ in gradient), *gradient)
