"""The engine's tables: TorchTitan's keys, types and defaults, as far as the engine honours them.

They mirror TorchTitan 0.3.0's own dataclasses because importing those takes seconds, too long for
``titanrl check``; a test compares the two key by key and lists each difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Annotated, Literal

from titanrl.registry import Range, validated

__all__ = [
    "ActivationCheckpoint",
    "Checkpoint",
    "Compile",
    "LRScheduler",
    "Optimizer",
    "Parallelism",
    "Training",
]


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Sizes and precision of the update."""

    seq_len: Annotated[int, Range("[2, inf)")] = 2048
    """Maximum length of prompt and response, tokens. A longer prompt is an error, a longer response is
    cut."""
    max_tokens_per_microbatch: Annotated[int, Range("[1, inf)")] = 2048
    """Distinct tokens per forward and backward pass on a rank: it sets memory, never the result.

    Rows of a group share their prompt and are computed together. A larger group is split into parts, each
    with the prompt; if the loss compares the rows of a group, the group is one pass regardless.
    """
    max_norm: Annotated[float, Range("(0, inf]")] = 1.0
    """Maximum norm of the gradient; inf: no clipping."""
    dtype: Literal["bfloat16", "float32"] = "float32"
    """Precision of the master weights, gradients and optimizer state."""
    mixed_precision_param: Literal["bfloat16", "float32"] = "bfloat16"
    """Precision of the forward and backward pass."""


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """TorchTitan's OptimizersContainer with one parameter group."""

    name: Literal["Adam", "AdamW"] = "AdamW"
    """Class in torch.optim."""
    lr: Annotated[float, Range("(0, inf)")] = 1e-6
    """Peak learning rate."""
    beta1: Annotated[float, Range("[0, 1)")] = 0.9
    """Decay of the first moment."""
    beta2: Annotated[float, Range("[0, 1)")] = 0.95
    """Decay of the second moment."""
    eps: Annotated[float, Range("(0, inf)")] = 1e-8
    """Term added to the denominator."""
    weight_decay: Annotated[float, Range("[0, inf)")] = 0.1
    """Decay of the weights per step, in units of lr."""
    implementation: Literal["for-loop", "foreach", "fused", "fused_opt_states_bf16"] = "fused"
    """Implementation of the update; fused_opt_states_bf16 keeps the moments in bfloat16 and needs a GPU."""


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class LRScheduler:
    """Warm-up, stable phase, decay; counted in optimizer steps."""

    warmup_steps: Annotated[int, Range("[0, inf)")] = 0
    """Optimizer steps over which the learning rate rises linearly to lr."""
    total_steps: Annotated[int | None, Range("[1, inf)")] = None
    """Optimizer steps of the whole schedule. Default: those of the run."""
    decay_ratio: Annotated[float, Range("[0, 1]")] = 0.0
    """Fraction of the schedule, at its end, over which the learning rate decays; 0: no decay."""
    decay_type: Literal["linear", "sqrt", "cosine"] = "linear"
    """Shape of the decay."""
    min_lr_factor: Annotated[float, Range("[0, 1]")] = 0.0
    """Learning rate at the end of the decay, as a factor of lr."""


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """The mesh: degrees multiply to the number of processes."""

    data_parallel_replicate_degree: Annotated[int, Range("[1, inf)")] = 1
    """Replicas of the sharded model (HSDP)."""
    data_parallel_shard_degree: Annotated[int, Range("[-1, inf)")] = -1
    """Ranks over which weights are sharded (FSDP2), >= 1; -1: all ranks that the other degrees leave."""
    fsdp_reshard_after_forward: Literal["default", "always", "never"] = "default"
    """Whether gathered weights are freed between forward and backward."""
    tensor_parallel_degree: Annotated[int, Range("[1, inf)")] = 1
    """Ranks over which each matrix is split."""
    enable_sequence_parallel: bool = True
    """Whether norms are split along the sequence over the tensor-parallel ranks."""
    pipeline_parallel_degree: Annotated[int, Range("[1, inf)")] = 1
    """Ranks over which the layers are split."""
    pipeline_parallel_schedule: Literal["1F1B", "Interleaved1F1B"] = "1F1B"
    """Pipeline schedule of torch.distributed.pipelining: one stage per rank, or two."""
    expert_parallel_degree: Annotated[int, Range("[1, inf)")] = 1
    """Ranks over which the experts of a mixture are distributed; a divisor of shard degree x tensor
    degree, whose ranks it uses."""
    spmd_backend: Literal["partial_dtensor"] = "partial_dtensor"
    """How sharding is expressed; the other backends do not work on torch 2.13."""

    def __post_init__(self) -> None:
        if self.data_parallel_shard_degree < 1 and self.data_parallel_shard_degree != -1:
            raise ValueError(
                f"data_parallel_shard_degree must be >= 1, or -1, got {self.data_parallel_shard_degree}."
            )

    @property
    def least_ranks(self) -> int:
        """The minimum number of processes; with a shard degree of -1 multiples of it are valid too."""
        tensor, experts = self.tensor_parallel_degree, self.expert_parallel_degree
        shard = self.data_parallel_shard_degree
        if shard == -1:
            shard = experts // gcd(experts, tensor)
        return self.data_parallel_replicate_degree * shard * tensor * self.pipeline_parallel_degree


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Distributed checkpoints in the run folder; ``--resume`` continues from the last."""

    enable: bool = True
    """Whether checkpoints are written."""
    interval: Annotated[int, Range("[1, inf)")] = 500
    """Training steps between two checkpoints; the last step is always saved."""
    keep_latest_k: Annotated[int, Range("[0, inf)")] = 10
    """Number of checkpoints to keep, 0 (all) or >= 2."""
    keep_best: str | None = None
    """Validation metric, e.g. "eval/score", by which the best checkpoint is chosen: it is written when the
    value is measured, kept beside the newest ones, and recorded in checkpoints/best.json. Default: none."""
    keep_best_mode: Literal["max", "min"] = "max"
    """Whether larger values of keep_best are better, or smaller ones, as of "eval/loss"."""
    async_mode: Literal["disabled", "async", "async_with_pinned_mem"] = "disabled"
    """Whether checkpoints are written while training continues; the copy in pinned memory needs a GPU."""

    def __post_init__(self) -> None:
        if self.keep_latest_k < 0 or self.keep_latest_k == 1:
            raise ValueError(
                f"keep_latest_k must be 0 (all) or >= 2, got {self.keep_latest_k}; "
                "the newest may be in the middle of being written."
            )
        if self.keep_best is not None and not self.keep_best.startswith("eval/"):
            raise ValueError(
                f"keep_best must name a metric of the validation, eval/..., got {self.keep_best!r}."
            )
        if self.keep_best is not None and not self.enable:
            raise ValueError("keep_best needs enable = true; remove it, or enable checkpoints.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """torch.compile."""

    enable: bool = False
    """Whether anything is compiled. On a CPU only compiled blocks pay off, in long updates."""
    components: tuple[Literal["model", "loss"], ...] = ("model", "loss")
    """Parts to compile: the transformer blocks (model), the head and the objective (loss)."""
    backend: str = "inductor"
    """Backend of torch.compile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationCheckpoint:
    """Which activations are recomputed in the backward pass instead of kept."""

    mode: Literal["none", "selective", "full"] = "none"
    """none: keep all activations; selective: recompute the cheap ones; full: recompute whole blocks."""
    preserve_rng_state: bool = True
    """Whether recomputation uses the same random numbers."""
    determinism_check: str = "default"
    """Comparison of the two computations by torch.utils.checkpoint: default or none."""
