"""Speed and memory of the head, forward and backward: hidden states [4096, 576], 49,152 vocabulary entries.

Peers: all logits at once; TorchTitan's chunked wrapper around its log-probs; Liger's chunked GRPO loss. All
alternate on all threads, in both precisions; medians of wall time. Run:
``make bench ONLY=head``; it takes minutes.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titanrl.models.accelerator import computes_bfloat16  # isort: skip  # before torchtitan

import pytest
import torch
from torchtitan.components.loss import BaseLoss, ChunkedLossWrapper, compute_logprobs

from benchmarks.timing import peak_bytes
from titanrl.engine import init_distributed
from titanrl.ops.logprob import token_statistics

ROWS, LENGTH, D, V = 64, 64, 576, 49152
TOKENS, ROUNDS = ROWS * LENGTH, 5
Gradients = tuple[torch.Tensor, torch.Tensor]
HAS_LIGER = importlib.util.find_spec("liger_kernel") is not None

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class RowLoss(BaseLoss):  # type: ignore[misc]
    """A policy-gradient loss on TorchTitan's log-probs of a chunk, with entropy as a metric."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseLoss.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Config, *, compile_config: Any = None) -> None: ...

    def __call__(self, pred: Any, labels: Any, global_valid_tokens: Any = None, *, advantages: Any) -> Any:
        logprob, entropy = compute_logprobs(pred, labels, return_entropy=True)
        return -(logprob * advantages).sum() / TOKENS, {"entropy_mean": entropy.mean()}


class Heads:
    """The same loss with each head; each returns the gradients of the hidden states and the weight."""

    def __init__(self, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)
        self.hidden = torch.randn(ROWS, LENGTH, D, generator=generator).to(dtype).requires_grad_()
        self.weight = torch.nn.Parameter((torch.randn(V, D, generator=generator) * 0.05).to(dtype))
        self.ids = torch.randint(0, V, (ROWS, LENGTH), generator=generator)
        self.advantage = torch.randn(ROWS, 1, generator=generator).expand(-1, LENGTH).contiguous()
        self._linear = torch.nn.Linear(D, V, bias=False, dtype=dtype)
        self._linear.weight = self.weight
        self._chunked = ChunkedLossWrapper(ChunkedLossWrapper.Config(num_chunks=8, loss_fn=RowLoss.Config()))
        self._chunked.set_lm_head(self._linear)
        self._liger: Any = None

    def gradients(self, name: str) -> Gradients:
        self.hidden.grad = self.weight.grad = None
        getattr(self, name)().backward()
        assert self.hidden.grad is not None
        assert self.weight.grad is not None
        return self.hidden.grad, self.weight.grad

    def ours(self) -> torch.Tensor:
        statistics = token_statistics(self.hidden.flatten(0, 1), self.weight, self.ids.view(-1, 1))
        return -(statistics.logprob[:, 0] * self.advantage.flatten()).sum() / TOKENS

    def naive(self) -> torch.Tensor:
        logits = (self.hidden.flatten(0, 1) @ self.weight.t()).float()
        logprob = logits.log_softmax(-1)
        with torch.no_grad():
            (logprob.exp() * logprob).sum(-1)
        return -(logprob.gather(1, self.ids.view(-1, 1))[:, 0] * self.advantage.flatten()).sum() / TOKENS

    def torchtitan(self) -> Any:
        line = self.hidden.view(1, TOKENS, D)
        return self._chunked(line, self.ids.view(1, -1), advantages=self.advantage.view(1, -1))[0]

    def liger(self) -> Any:
        from liger_kernel.chunked_loss.grpo_loss import LigerFusedLinearGRPOLoss

        if self._liger is None:
            self._liger = LigerFusedLinearGRPOLoss(
                beta=0.0, loss_type="bnpo", use_ref_model=False, chunk_size=4
            )
        mask = torch.ones(ROWS, LENGTH)
        return self._liger(self.hidden, self.weight, self.ids, mask, self.advantage[:, 0])[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_head(dtype: torch.dtype, benchmark: Any, tmp_path: Path) -> None:
    if dtype == torch.bfloat16 and not computes_bfloat16():
        pytest.skip("this CPU emulates bfloat16")
    init_distributed()
    heads = Heads(dtype)
    peers = ["naive", "torchtitan", *(["liger"] if HAS_LIGER else [])]
    assert_same(heads, peers, atol=2e-5 if dtype == torch.bfloat16 else 1e-8)
    if benchmark.disabled:
        return
    times: dict[str, list[float]] = {name: [] for name in ("ours", *peers)}
    for _ in range(ROUNDS):
        for name, spent in times.items():
            spent.append(seconds(lambda: heads.gradients(name)))  # noqa: B023
    median = {name: statistics.median(spent) for name, spent in times.items()}
    faster = {name: median[name] / median["ours"] for name in peers}
    memory = {
        name: peak_bytes(lambda: heads.gradients(name), tmp_path) / 2**20  # noqa: B023
        for name in times
    }
    benchmark.extra_info.update(
        seconds=times,
        ratio=faster,
        memory_mib=memory,
        dtype=str(dtype),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
    )
    benchmark.pedantic(lambda: None, rounds=1)
    # All allocate the gradient of the weight; only the memory beyond it is compared.
    results = (V + TOKENS) * D * dtype.itemsize / 2**20
    extra = {name: size - results for name, size in memory.items()}
    assert extra["ours"] <= 0.1 * extra["naive"], memory
    assert extra["ours"] <= extra.get("liger", 2 * extra["ours"]) / 2, memory
    if dtype == torch.float32:
        assert faster["naive"] >= 1 / 1.05, benchmark.extra_info
        return
    assert faster["torchtitan"] >= 1.8, benchmark.extra_info
    assert faster.get("liger", 2.4) >= 2.4, benchmark.extra_info


def assert_same(heads: Heads, peers: list[str], atol: float) -> None:
    hidden, weight = (x.clone() for x in heads.gradients("ours"))
    for peer in peers:
        for mine, theirs in zip((hidden, weight), heads.gradients(peer), strict=True):
            torch.testing.assert_close(
                mine, theirs, atol=atol, rtol=2e-2 if mine.dtype.itemsize == 2 else 1e-4
            )


def seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
