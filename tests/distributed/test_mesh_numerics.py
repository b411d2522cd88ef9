"""Numerics on meshes of two ranks: gradient norms, vocabulary shards, numbers of micro-batches.

Whole models are compared with one process in test_engine_meshes.py: gradients that are off by a degree, sums
over ranks, ranks without labels, tied weights under pipeline parallelism and uneven micro-batches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.torchrun import launch
from titanrl.models import tiny

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]
WORKER = Path(__file__).parent / "mesh_numerics_worker.py"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("mesh_numerics")
    tiny.create(folder / "model")
    return launch(WORKER, folder, 2, timeout_seconds=500)


def test_grad_norm_counts_a_replicated_gradient_once(ranks: list[dict[str, Any]]) -> None:
    """sqrt(3^2 + 4^2 + 12^2); counted per rank it would be 17.69, and 7.07 for two copies of 5."""
    for rank in ranks:
        assert rank["norm"] == pytest.approx(13.0)
        assert rank["norm of copies"] == pytest.approx(5.0)


def test_vocab_parallel_log_softmax_gradient_equals_the_closed_form(
    ranks: list[dict[str, Any]],
) -> None:
    """w - softmax(z) sum(w); an identity as backward pass returns w (PyTorch #190746)."""
    z, w = ranks[0]["head"]["logits"], ranks[0]["head"]["weights"]
    expected = w - z.softmax(-1) * w.sum(-1, keepdim=True)
    actual = torch.cat([rank["head"]["gradient"] for rank in ranks], dim=-1)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-5)
    for rank in ranks:
        torch.testing.assert_close(rank["head"]["logprob"], z.log_softmax(-1), atol=1e-6, rtol=1e-5)


def test_vocab_parallel_gradient_sums_to_zero(ranks: list[dict[str, Any]]) -> None:
    """Ranks that do not own the label have their part of the gradient (ms-swift #9947)."""
    total = sum(rank["head"]["gradient"].sum(-1) for rank in ranks)
    torch.testing.assert_close(total, torch.zeros(3), atol=1e-5, rtol=0)


def test_ranks_run_the_same_number_of_micro_batches(ranks: list[dict[str, Any]]) -> None:
    """A rank with one more micro-batch would wait forever for a collective (verl #6176)."""
    assert ranks[0]["micro-batches"] == [8, 8]
    assert ranks[1]["micro-batches"] == [4, 0]
