"""The contracts between components, engine and loop; nothing here does anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from titanrl.protocols.sources import (
    DataSettings,
    DataSource,
    Example,
    Messages,
    ProcessStep,
    Prompt,
    PromptSource,
    SourceSettings,
)

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict
    from torch import Tensor

__all__ = [
    "AdvantageEstimator",
    "Advantages",
    "Aggregation",
    "Correction",
    "CorrectionResult",
    "DataSettings",
    "DataSource",
    "Filter",
    "Example",
    "KLController",
    "KLEstimator",
    "Messages",
    "PolicyLoss",
    "PolicyOutputs",
    "Prompt",
    "RolloutRequest",
    "PromptSource",
    "RewardFunction",
    "Completion",
    "Sampler",
    "SamplerContext",
    "SamplerSettings",
    "SourceSettings",
    "Stateful",
    "ProcessStep",
    "TokenLoss",
]


class PolicyOutputs(NamedTuple):
    """What the head computes of one micro-batch; float32, label-aligned. Masked places are undefined.

    Of a value model only ``value`` means anything; its ``logprob`` is 0.
    """

    logprob: Tensor
    """[B, L] log pi(labels_t | input_ids_<=t) at the sampling temperature, nats."""
    entropy: Tensor | None = None
    """[B, L] nats, differentiable."""
    value: Tensor | None = None
    """[B, L] scalar head (critic, reward model): value of the state in which labels[t] is about to come."""
    sum_pi_squared: Tensor | None = None
    """[B, L] sum over the vocabulary of pi^2, for optimal baselines."""
    candidate_logprob: Tensor | None = None
    """[B, L, K] log pi of batch["candidate_ids"] (distillation)."""


class TokenLoss(NamedTuple):
    """A loss before any averaging."""

    loss: Tensor
    """[B, L], or [B, 1] = one number a sequence, broadcast over its tokens; 0 where masked."""
    metrics: dict[str, Tensor]
    """Same shapes; [B, L] is reported as the mean over loss_mask, [B, 1] as the mean over live rows."""


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
    """Numbers in, numbers out: no vocabulary, no normaliser, no mesh.

    A class may declare ``needs`` (fields of PolicyOutputs beside ``logprob``), ``paired`` (rows 2i and 2i + 1
    are compared), ``couples_group`` (rows of a group are) and ``couples_step`` (all rows of an optimizer step
    are): what is compared is computed together. Rows are taken one by one otherwise, in any order.
    """

    @property
    def in_keys(self) -> tuple[str | tuple[str, ...], ...]: ...
    def __call__(self, policy: PolicyOutputs, batch: TensorDict) -> TokenLoss: ...


class AdvantageEstimator(Protocol):
    @property
    def in_keys(self) -> tuple[str | tuple[str, ...], ...]: ...
    def __call__(self, batch: TensorDict) -> Advantages: ...


class KLEstimator(Protocol):
    def __call__(self, logprob: Tensor, ref_logprob: Tensor) -> Tensor: ...


class Aggregation(Protocol):
    def __call__(self, loss_mask: Tensor, group_id: Tensor) -> Tensor: ...


class Correction(Protocol):
    @property
    def in_keys(self) -> tuple[str | tuple[str, ...], ...]: ...
    def __call__(self, batch: TensorDict) -> CorrectionResult: ...


class Filter(Protocol):
    """Returns keep [N] bool: whole groups, unless its documentation says rows."""

    @property
    def in_keys(self) -> tuple[str | tuple[str, ...], ...]: ...
    def __call__(self, batch: TensorDict) -> Tensor: ...


class RewardFunction(Protocol):
    """Returns one finite float32 a row, in row order; never raises."""

    def __call__(self, batch: TensorDict) -> Tensor: ...


@runtime_checkable
class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class KLController(Stateful, Protocol):
    coefficient: float

    def update(self, kl: float, num_sequences: int, step: int) -> None: ...


# ------------------------------------------------------------------------------------------------ sampling


class RolloutRequest(NamedTuple):
    """One answer to be sampled: rows of a group share ``prompt_ids`` and differ in ``sample``."""

    prompt_ids: Sequence[int]
    group: int
    """Number of the prompt in its step; with step and sample it makes the seed."""
    sample: int
    """0 .. G-1 within the group."""
    text: str = ""
    """The prompt as text, for scripted samplers and logs."""
    answer: str = ""


class Completion(NamedTuple):
    """One sampled answer: token ids as they were sampled, never decoded and encoded again."""

    ids: Sequence[int]
    """Response token ids, the end token included when it was sampled."""
    logprobs: Sequence[float]
    """Log-prob of each under the distribution really sampled from, nats; same length as ``ids``."""
    finish_reason: int
    """0 stop, 1 length, 2 abort."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerContext:
    """What a sampler may know of the process it lives in."""

    model_path: str
    """HF folder: config, tokenizer and the initial weights."""
    eos_ids: tuple[int, ...]
    """Every token id that ends an answer."""
    max_length: int
    """Longest prompt + response, tokens."""
    seed: int
    device: str = "cpu"
    dtype: str = "float32"
    """Compute dtype of the trainer."""
    dp_rank: int = 0
    dp_degree: int = 1
    num_rows: int | None = None
    """Answers asked for at a time, on all ranks together; None: unknown."""
    engine: Any = None
    """The live titanrl.engine.Engine; the `torch` sampler decodes on its modules."""
    tokenizer: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)


class Sampler(Protocol):
    """A live resource. Rows come back in order; ``version`` is the policy's, counted in training steps."""

    version: int
    weight_dtype: torch.dtype | None
    """Precision to which ``load`` rounds what it is given, so that it may travel so; None: it does not."""
    ranks_per_engine: int
    """Ranks in a row that answer the same rows together."""

    def sample(
        self,
        rows: Sequence[RolloutRequest],
        *,
        step: int,
        seed: int,
        temperature: float | None = None,
        greedy: bool = False,
        max_tokens: int | None = None,
    ) -> list[Completion]: ...
    def load(self, weights: Iterable[tuple[str, torch.Tensor]], *, version: int) -> None: ...
    def sleep(self) -> None: ...
    def wake(self) -> None: ...
    def close(self) -> None: ...


class SamplerSettings(Protocol):
    """A registered sampler: its fields are its TOML table; ``start`` makes the live resource.

    It may have ``problems(folder, world_size)``: (field, what is wrong) for what it cannot sample from.
    """

    temperature: float
    max_response_tokens: int

    def start(self, host: SamplerContext) -> Sampler: ...
