"""Faster sampling for vLLM on a CPU: inverse transform instead of Gumbel noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from titanrl.ops.sampling import sample_from_logits

__all__ = ["sample_by_inversion"]


def sample_by_inversion(worker: Any) -> None:
    """Makes a vLLM worker on a CPU sample from the cumulative distribution; for ``LLM.collective_rpc``.

    It needs one uniform number per row instead of noise for every token. vLLM 0.32 spends a fifth of the
    decoding time of a small model on Gumbel noise. vLLM's own temperature, top-k, top-p and per-request
    generators are unchanged.
    """
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    def forward(
        logits: torch.Tensor,
        generators: Mapping[int, torch.Generator],
        k: torch.Tensor | None,
        p: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = apply_top_k_top_p(logits, k, p)
        uniform = torch.rand(len(logits), dtype=torch.float64)
        for row, generator in generators.items():
            uniform[row] = torch.rand((), dtype=torch.float64, generator=generator)
        token, logprob = sample_from_logits(logits, uniform)
        # In place, like vLLM's own steps: from here on only log-probs are read.
        at_token = logits.gather(-1, token.unsqueeze(-1))
        return token, logits.sub_(at_token - logprob.unsqueeze(-1))

    # vLLM itself also replaces this method, by the one for its platform.
    worker.model_runner.sampler.topk_topp_sampler.forward = forward
