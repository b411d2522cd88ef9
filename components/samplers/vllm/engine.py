"""Live vLLM engine: generation on token ids, weight updates, sleep and wake."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from titanrl.components.samplers.rules import check_requests, top_k_of, top_p_of
from titanrl.components.samplers.vllm.heads import Heads
from titanrl.components.samplers.vllm.process import (
    preserved_process_state,
    preserved_random_state,
    vllm_module,
)
from titanrl.components.samplers.vllm.sampling import sample_by_inversion
from titanrl.components.samplers.vllm.stream import FINISH_REASONS, VLLMStream
from titanrl.components.samplers.vllm.weights import Repacker, load_unpacked
from titanrl.errors import ConfigError
from titanrl.ops.seeds import sample_seed
from titanrl.protocols import Completion, FinishReason, Sampler
from titanrl.runtime.stop import abandonable

if TYPE_CHECKING:
    from titanrl.protocols import RolloutRequest, SamplerContext, StreamRequest

__all__ = ["VLLMSampler"]

GIB = 2**30
BLOCK = 32
"""Tokens per block of keys and values on a CPU."""


class VLLMSampler(Sampler):
    """Live sampler of `vllm`. Beside a trainer it starts without weights: call ``load`` before ``sample``."""

    def __init__(self, settings: Any, context: SamplerContext) -> None:
        self._settings = settings
        self._context = context
        self._on_cpu = context.device == "cpu"
        self._stops = [*dict.fromkeys((*context.eos_ids, *settings.stop_token_ids))]
        self._sleeps = settings.sleep != "off" and not self._on_cpu
        self._is_asleep = False
        self.ranks_per_engine = settings.tensor_parallel_size
        self.weight_dtype = getattr(torch, self._dtype)
        self._check()
        self._owns_group = not torch.distributed.is_initialized()
        with preserved_process_state():
            self._vllm = vllm_module()
            self._llm = self._vllm.LLM(**self._arguments())
        if not self._owns_group:
            # Otherwise garbage collection would run the shutdown that close() avoids.
            self._llm.llm_engine.engine_core._finalizer.detach()
        self._has_weights = context.engine is None
        self._repacker = None
        if self._on_cpu:
            self._repacker = Repacker(self._llm.apply_model(_identity)[0])
            self._llm.collective_rpc(sample_by_inversion)

    def _check(self) -> None:
        context = self._context
        world_size = 1 if context.engine is None else context.engine.world_size
        for key, text in self._settings.problems(context.model_path, world_size):
            raise ConfigError(f"[sampler] {key} {text}")

    @property
    def _dtype(self) -> str:
        return self._context.dtype if self._settings.dtype == "auto" else self._settings.dtype

    def _arguments(self) -> dict[str, Any]:
        settings, context = self._settings, self._context
        on_cpu = self._on_cpu
        arguments: dict[str, Any] = {
            "model": context.model_path,
            "skip_tokenizer_init": True,
            "dtype": self._dtype,
            "max_model_len": context.max_length,
            "max_num_seqs": settings.max_num_seqs,
            "tensor_parallel_size": settings.tensor_parallel_size,
            "enforce_eager": on_cpu if settings.enforce_eager is None else settings.enforce_eager,
            "gpu_memory_utilization": settings.gpu_memory_utilization,
            "enable_sleep_mode": self._sleeps,
            "enable_prefix_caching": True,
            # Log-probs of the sampled distribution, not of the raw one.
            "logprobs_mode": "processed_logprobs",
            # Unset parameters must not come from the checkpoint's generation_config.
            "generation_config": "vllm",
            "seed": context.seed,
            "use_tqdm_on_load": False,
            "disable_log_stats": True,
        }
        if settings.kv_cache_gib is not None:
            arguments["kv_cache_memory_bytes"] = int(settings.kv_cache_gib * GIB)
        elif on_cpu:
            arguments["kv_cache_memory_bytes"] = _needed_bytes(settings, context, self._dtype)
        if settings.block_size is not None or on_cpu:
            arguments["block_size"] = settings.block_size or BLOCK
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            arguments["distributed_executor_backend"] = "external_launcher"
        overrides: dict[str, Any] = {}
        if context.head_dtype is not None:
            overrides["head_dtype"] = context.head_dtype
        if context.engine is not None:
            # The trainer sends its weights; those of the folder are never used.
            arguments["load_format"] = "dummy"
            if not context.engine.is_tied:
                overrides["tie_word_embeddings"] = False
        if overrides:
            arguments["hf_overrides"] = overrides
        return arguments

    def sample(
        self,
        requests: Sequence[RolloutRequest],
        *,
        step: int,
        seed: int,
        temperature: float | None = None,
        greedy: bool = False,
        max_tokens: int | None = None,
    ) -> list[Completion]:
        """Returns one response per request, in order.

        Args:
            requests: the prompts; may be empty.
            step: training step, part of the random seed.
            seed: seed of the run.
            temperature: divisor of the logits; None: the settings'.
            greedy: take the most probable token; log-probs are then at temperature 1.
            max_tokens: largest length of a response; None: the settings' max_response_tokens.

        Raises:
            ValueError: a prompt is empty or too long; nothing has been sampled then.
            RuntimeError: the engine is asleep, or its weights are incomplete.
        """
        if not requests:
            return []
        limit = self._settings.max_response_tokens if max_tokens is None else max_tokens
        check_requests(requests, self._context, limit)
        if self._is_asleep or not self._has_weights:
            raise RuntimeError(
                "sampler 'vllm' has no weights to sample with; call wake() and load() before sample()."
            )
        if temperature is None:
            temperature = self._settings.temperature
        if not (greedy or 0.01 <= temperature <= 2):
            raise ValueError(
                f"temperature must be in [0.01, 2], got {temperature}; use greedy = true for temperature 0."
            )
        parameters = [
            self._parameters(
                None if greedy else temperature,
                limit,
                sample_seed(seed, step, request.prompt_index, request.sample_index),
            )
            for request in requests
        ]
        prompts = [{"prompt_token_ids": list(request.prompt_ids)} for request in requests]
        # Ranks that share an engine compute every token together.
        with preserved_random_state(), abandonable() if self.ranks_per_engine == 1 else nullcontext():
            outputs = self._llm.generate(prompts, parameters, use_tqdm=False)
        return [_completion_of(output.outputs[0]) for output in outputs]

    def stream(self) -> VLLMStream:
        """Returns a stream of responses from this engine."""
        delta = self._vllm.sampling_params.RequestOutputKind.DELTA

        def parameters(request: StreamRequest) -> Any:
            temperature = request.temperature
            return self._parameters(
                temperature, request.max_tokens, request.seed, logprobs=request.num_top, output_kind=delta
            )

        engine, capacity = self._llm.llm_engine, self._settings.max_num_seqs
        return VLLMStream(engine, parameters, self._context, capacity)

    def _parameters(
        self, temperature: float | None, max_tokens: int, seed: int, *, logprobs: int = 0, **more: Any
    ) -> Any:
        """Returns vLLM's parameters of one response; a temperature of None is greedy decoding."""
        greedy = temperature is None
        return self._vllm.SamplingParams(
            temperature=0.0 if greedy else temperature,
            top_k=0 if greedy else top_k_of(self._settings) or 0,
            top_p=1.0 if greedy else top_p_of(self._settings) or 1.0,
            max_tokens=max_tokens,
            seed=seed,
            # Only these tokens end a response, whatever generation_config.json adds.
            stop_token_ids=self._stops,
            ignore_eos=True,
            logprobs=logprobs,
            detokenize=False,
            **more,
        )

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], *, version: int) -> None:
        """Replaces all weights and clears the prefix cache.

        Args:
            weights: (Hugging Face name, tensor) of every weight.
            version: policy version of these weights.

        Raises:
            ValueError: a name or shape that vLLM's model does not have, or a missing weight. Some weights may
                be replaced by then, so sampling is refused until the next successful load.
            RuntimeError: the engine is asleep, so that there is no memory to write to.
        """
        if self._is_asleep:
            raise RuntimeError("sampler 'vllm' is asleep and cannot take weights; call wake() before load().")
        self._has_weights = False
        if self._repacker is not None:
            self._repacker.load(weights)
        else:
            self._llm.apply_model(lambda model: load_unpacked(model, weights))
        if not self._llm.reset_prefix_cache():
            raise RuntimeError(
                "vLLM did not clear the prefix cache of the old weights; check that no request is running."
            )
        self._has_weights = True
        self.version = version

    def sleep(self) -> None:
        """Frees memory as the settings say; no effect on a CPU or when asleep."""
        if self._sleeps and not self._is_asleep:
            self._llm.sleep(level=1 if self._settings.sleep == "offload" else 2)
            self._is_asleep = True
            self._has_weights &= self._settings.sleep == "offload"

    def wake(self) -> None:
        """Takes the memory back; after sleep = "discard", ``load`` must follow."""
        if self._is_asleep:
            self._llm.wake_up()
            self._is_asleep = False

    def close(self) -> None:
        """Shuts the engine down, but not the trainer's process group. An engine that created a group
        destroys it, so close it last.
        """
        if self._llm is None:
            return
        client = self._llm.llm_engine.engine_core
        if self._owns_group:
            client.shutdown()
        else:
            # Its own shutdown destroys every process group, including the trainer's (vLLM 0.32).
            client.engine_core.model_executor.shutdown()
            client.engine_core.scheduler.shutdown()
        self._llm = self._repacker = None
        gc.unfreeze()  # vLLM froze all objects when it started
        gc.collect()


def _needed_bytes(settings: Any, context: SamplerContext, dtype: str) -> int:
    """Returns the largest memory that keys and values can need, at most one gibibyte."""
    rows, size = settings.max_num_seqs, settings.tensor_parallel_size
    if context.num_rows is not None:
        engines = (1 if context.engine is None else context.engine.world_size) // size
        rows = min(rows, -(-context.num_rows // engines))
    block = settings.block_size or BLOCK
    # The last block of each response is partly filled, and one block is reserved.
    tokens = rows * (context.max_length + block) + block
    num_values = Heads.read(context.model_path).values_per_token(size)
    return min(tokens * num_values * getattr(torch, dtype).itemsize, GIB)  # type: ignore[no-any-return]


def _identity(model: Any) -> Any:
    return model


def _completion_of(completion: Any) -> Completion:
    """Returns titanrl's form of one vLLM completion."""
    ids = list(completion.token_ids)
    # Look up by id: the first entry is the most probable token, sampled or not.
    logprobs = [entry[token].logprob for token, entry in zip(ids, completion.logprobs, strict=True)]
    return Completion(ids, logprobs, FINISH_REASONS.get(completion.finish_reason, FinishReason.ABORT))
