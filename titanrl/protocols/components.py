"""Contracts of pure components: losses, advantages, KL, aggregations, corrections, filters, rewards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tensordict import TensorDict
    from torch import Tensor

__all__ = [
    "AdvantageEstimator",
    "Advantages",
    "Aggregation",
    "Correction",
    "CorrectionResult",
    "Filter",
    "KLController",
    "KLEstimator",
    "PolicyLoss",
    "PolicyOutputs",
    "ReadsReferences",
    "RewardFunction",
    "Stateful",
    "TokenLoss",
]


class PolicyOutputs(NamedTuple):
    """Outputs of the head for one micro-batch; float32, label-aligned, undefined where masked.

    A value model sets only ``value``; its ``logprob`` is 0.
    """

    logprob: Tensor
    """[B, L] log pi(labels_t | input_ids_<=t) at the sampling temperature, nats."""
    entropy: Tensor | None = None
    """[B, L] nats, differentiable."""
    value: Tensor | None = None
    """[B, L] scalar head (critic, reward model): value of the state before labels[t] is generated."""
    sum_pi_squared: Tensor | None = None
    """[B, L] sum over the vocabulary of pi^2, for optimal baselines."""
    candidate_logprob: Tensor | None = None
    """[B, L, K] log pi of batch["candidate_ids"] (distillation)."""


class TokenLoss(NamedTuple):
    """A loss before any averaging."""

    loss: Tensor
    """[B, L], or [B, 1] = one value per sequence, broadcast over its tokens; 0 where masked."""
    metrics: dict[str, Tensor]
    """Same shapes; [B, L] is reported as the mean over loss_mask, [B, 1] as the mean over non-empty rows."""


class Advantages(NamedTuple):
    """[N, L] float32, 0 where masked; ``returns`` only from estimators that train a critic or whiten."""

    advantage: Tensor
    returns: Tensor | None = None


class CorrectionResult(NamedTuple):
    """``weight`` [N, L] float32 multiplies the policy loss; ``keep`` [N, L] bool; both 0 where masked."""

    weight: Tensor
    keep: Tensor
    metrics: dict[str, Tensor]
    """Scalars of the whole batch."""


class PolicyLoss(Protocol):
    """A per-token loss; it never deals with the vocabulary, the normalizer or the mesh.

    A class may declare ``needs`` (fields of PolicyOutputs beside ``logprob``), ``paired`` (compares rows 2i
    and 2i + 1), ``couples_group`` (compares the rows of a group) and ``couples_step`` (compares all rows of
    an optimizer step). Rows that are compared are computed together; otherwise each row is independent.
    """

    @property
    def in_keys(self) -> tuple[str | tuple[str, ...], ...]: ...
    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss: ...


class AdvantageEstimator(Protocol):
    """Rewards -> advantages [N, L], and returns where a critic is trained."""

    @property
    def in_keys(self) -> tuple[str | tuple[str, ...], ...]: ...
    def __call__(self, batch: TensorDict) -> Advantages: ...


class KLEstimator(Protocol):
    """A per-token estimate [B, L] of KL(policy || reference), nats."""

    def __call__(self, logprob: Tensor, ref_logprob: Tensor) -> Tensor: ...


class Aggregation(Protocol):
    """The weight of each token's loss, [N, L], over all rows of an optimizer step."""

    def __call__(self, loss_mask: Tensor, group_id: Tensor) -> Tensor: ...


class Correction(Protocol):
    """A correction of the mismatch between sampler and trainer, or a selection of loss tokens.

    Tokens that a correction drops stay in the denominators, unless [algorithm] denominator = "kept". A class
    that declares ``selects = True`` removes them from loss_mask instead.
    """

    @property
    def in_keys(self) -> tuple[str | tuple[str, ...], ...]: ...
    def __call__(self, batch: TensorDict) -> CorrectionResult: ...


class Filter(Protocol):
    """Selects the rows to train on: keep [N] bool, the same in a group unless its documentation differs."""

    @property
    def in_keys(self) -> tuple[str | tuple[str, ...], ...]: ...
    def __call__(self, batch: TensorDict) -> Tensor: ...


class RewardFunction(Protocol):
    """Scores the rows of a batch: [N] float32, one finite value per row, in row order.

    A class may declare ``per_token = True`` and return [N, L], one value per label position; or ``outputs``,
    a tuple of names, and return a mapping of these names to [N]; and ``out_keys``, registered batch keys that
    the mapping then holds too. See ``titanrl.rollout.rewards.score_rewards``. A reward with a method
    ``unreadable_references`` is a ``ReadsReferences``.
    """

    def __call__(self, batch: TensorDict) -> Tensor | Mapping[str, Tensor]: ...


@runtime_checkable
class ReadsReferences(Protocol):
    """A reward that may be unable to read a reference answer; `titanrl check --data` counts such prompts."""

    def unreadable_references(self, references: Sequence[str]) -> list[str | None]:
        """Return, for each reference answer, why the reward cannot read it; None if it can."""


@runtime_checkable
class Stateful(Protocol):
    """An object with state to checkpoint."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class KLController(Stateful, Protocol):
    """A coefficient that may change with every step."""

    coefficient: float

    def update(self, kl: float, num_sequences: int, step: int) -> None: ...
