"""The live vLLM engine: token ids in, token ids and log-probs out; weights by name; sleep and wake."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from titanrl.components.samplers.rules import check_rows, top_k_of, top_p_of
from titanrl.components.samplers.vllm.heads import Heads
from titanrl.components.samplers.vllm.process import kept_process_state, kept_random_state, vllm_module
from titanrl.components.samplers.vllm.sampling import draw_by_inversion
from titanrl.components.samplers.vllm.weights import Repacker, load_documented
from titanrl.errors import ConfigError
from titanrl.ops.seeds import sample_seed
from titanrl.protocols import Completion

if TYPE_CHECKING:
    from titanrl.components.samplers.vllm import VLLM
    from titanrl.protocols import RolloutRequest, SamplerContext

__all__ = ["VLLMSampler"]

FINISH = {"stop": 0, "length": 1}
"""vLLM's words -> finish_reason; anything else is an abort, 2."""
GIB = 2**30
BLOCK = 32
"""Tokens of a block of keys and values, on a CPU."""


class VLLMSampler:
    """The live engine. Beside a trainer it begins without weights: ``load`` comes before ``sample``."""

    def __init__(self, settings: VLLM, host: SamplerContext) -> None:
        self._settings = settings
        self._host = host
        self._on_cpu = host.device == "cpu"
        self._stops = [*dict.fromkeys((*host.eos_ids, *settings.stop_token_ids))]
        self._sleeps = settings.sleep != "off" and not self._on_cpu
        self._is_asleep = False
        self.version = 0
        self.ranks_per_engine = settings.tensor_parallel_size
        self.weight_dtype = getattr(torch, self._dtype)
        self._check()
        self._owns_group = not torch.distributed.is_initialized()
        with kept_process_state():
            self._vllm = vllm_module()
            self._llm = self._vllm.LLM(**self._arguments())
        if not self._owns_group:
            # Or the shutdown that close() avoids would come when the engine is collected.
            self._llm.llm_engine.engine_core._finalizer.detach()
        self._has_weights = host.engine is None
        self._repacker = None
        if self._on_cpu:
            self._repacker = Repacker(self._llm.apply_model(_itself)[0])
            self._llm.collective_rpc(draw_by_inversion)

    def _check(self) -> None:
        host = self._host
        world_size = 1 if host.engine is None else host.engine.world_size
        for key, text in self._settings.problems(host.model_path, world_size):
            raise ConfigError(f"[sampler] {key} {text}")

    @property
    def _dtype(self) -> str:
        return self._host.dtype if self._settings.dtype == "auto" else self._settings.dtype

    def _arguments(self) -> dict[str, Any]:
        settings, host = self._settings, self._host
        on_cpu = self._on_cpu
        arguments: dict[str, Any] = {
            "model": host.model_path,
            "skip_tokenizer_init": True,
            "dtype": self._dtype,
            "max_model_len": host.max_length,
            "max_num_seqs": settings.max_num_seqs,
            "tensor_parallel_size": settings.tensor_parallel_size,
            "enforce_eager": on_cpu if settings.enforce_eager is None else settings.enforce_eager,
            "gpu_memory_utilization": settings.gpu_memory_utilization,
            "enable_sleep_mode": self._sleeps,
            "enable_prefix_caching": True,
            # What was sampled from, not the raw distribution.
            "logprobs_mode": "processed_logprobs",
            # Parameters left open must not come from the checkpoint's generation_config.
            "generation_config": "vllm",
            "seed": host.seed,
            "use_tqdm_on_load": False,
            "disable_log_stats": True,
        }
        if settings.kv_cache_gib is not None:
            arguments["kv_cache_memory_bytes"] = int(settings.kv_cache_gib * GIB)
        elif on_cpu:
            arguments["kv_cache_memory_bytes"] = _needed_bytes(settings, host, self._dtype)
        if settings.block_size is not None or on_cpu:
            arguments["block_size"] = settings.block_size or BLOCK
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            arguments["distributed_executor_backend"] = "external_launcher"
        if host.engine is not None:
            # The trainer sends its weights; those of the folder are never sampled from.
            arguments["load_format"] = "dummy"
            if not host.engine.is_tied:
                arguments["hf_overrides"] = {"tie_word_embeddings": False}
        return arguments

    def sample(
        self,
        rows: Sequence[RolloutRequest],
        *,
        step: int,
        seed: int,
        temperature: float | None = None,
        greedy: bool = False,
        max_tokens: int | None = None,
    ) -> list[Completion]:
        """Returns one answer for each row, in order.

        Args:
            temperature: omitted: the settings'.
            greedy: take the likeliest token; log-probs are at temperature 1.
            max_tokens: longest answer; omitted: the settings' max_response_tokens.

        Raises:
            ValueError: a prompt that is empty or too long, before any is answered.
            RuntimeError: the engine sleeps, or has not all weights.
        """
        if not rows:
            return []
        longest = self._settings.max_response_tokens if max_tokens is None else max_tokens
        check_rows(rows, self._host, longest)
        if self._is_asleep or not self._has_weights:
            raise RuntimeError(
                "sampler 'vllm' has no weights to sample with; call wake() and load() before sample()."
            )
        if temperature is None:
            temperature = self._settings.temperature
        if not (greedy or 0.01 <= temperature <= 2):
            raise ValueError(
                f"temperature must be in [0.01, 2], got {temperature}; or ask for greedy answers."
            )
        parameters = [
            self._vllm.SamplingParams(
                temperature=0.0 if greedy else temperature,
                top_k=0 if greedy else top_k_of(self._settings) or 0,
                top_p=1.0 if greedy else top_p_of(self._settings) or 1.0,
                max_tokens=longest,
                seed=sample_seed(seed, step, row.group, row.sample),
                # Which tokens end an answer is said here alone, whatever generation_config.json adds.
                stop_token_ids=self._stops,
                ignore_eos=True,
                logprobs=0,
                detokenize=False,
            )
            for row in rows
        ]
        prompts = [{"prompt_token_ids": list(row.prompt_ids)} for row in rows]
        with kept_random_state():
            outputs = self._llm.generate(prompts, parameters, use_tqdm=False)
        return [_sample_of(output.outputs[0]) for output in outputs]

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], *, version: int) -> None:
        """Replaces all weights and forgets every cached prefix.

        Raises:
            ValueError: a name or shape that vLLM's model does not have, or a missing one; sampling is refused
                from then on, as some weights may be replaced.
        """
        self._has_weights = False
        if self._repacker is not None:
            self._repacker.load(weights)
        else:
            self._llm.apply_model(lambda model: load_documented(model, weights))
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM kept the keys and values of old weights; is a request still running?")
        self._has_weights = True
        self.version = version

    def sleep(self) -> None:
        """Frees what the settings say; nothing on a CPU or when asleep."""
        if self._sleeps and not self._is_asleep:
            self._llm.sleep(level=1 if self._settings.sleep == "offload" else 2)
            self._is_asleep = True
            self._has_weights &= self._settings.sleep == "offload"

    def wake(self) -> None:
        """Takes the memory back; after "discard", ``load`` must follow."""
        if self._is_asleep:
            self._llm.wake_up()
            self._is_asleep = False

    def close(self) -> None:
        """Ends the engine. The trainer's process group stays; one that this engine made goes: end it last."""
        if self._llm is None:
            return
        client = self._llm.llm_engine.engine_core
        if self._owns_group:
            client.shutdown()
        else:
            # Its own shutdown destroys every process group, the trainer's too (vLLM 0.32).
            client.engine_core.model_executor.shutdown()
            client.engine_core.scheduler.shutdown()
        self._llm = self._repacker = None
        gc.unfreeze()  # vLLM froze all objects alive at its start
        gc.collect()


def _needed_bytes(settings: VLLM, host: SamplerContext, dtype: str) -> int:
    """Returns what the keys and values of so many answers take at most, up to a gibibyte."""
    rows, size = settings.max_num_seqs, settings.tensor_parallel_size
    if host.num_rows is not None:
        engines = (1 if host.engine is None else host.engine.world_size) // size
        rows = min(rows, -(-host.num_rows // engines))
    block = settings.block_size or BLOCK
    # Each answer's last block is filled in part, and one belongs to none.
    tokens = rows * (host.max_length + block) + block
    numbers = Heads.read(host.model_path).numbers_a_token(size)
    return min(tokens * numbers * getattr(torch, dtype).itemsize, GIB)  # type: ignore[no-any-return]


def _itself(model: Any) -> Any:
    return model


def _sample_of(completion: Any) -> Completion:
    ids = list(completion.token_ids)
    # By id: the first entry is the likeliest token's, sampled or not.
    logprobs = [entry[token].logprob for token, entry in zip(ids, completion.logprobs, strict=True)]
    return Completion(ids, logprobs, FINISH.get(completion.finish_reason, 2))
