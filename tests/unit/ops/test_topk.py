"""The top-k logits and ids, over the whole vocabulary and over slices of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from titanrl.ops.topk import topk


def test_topk_returns_the_largest_logits_and_their_ids() -> None:
    actual = topk(torch.tensor([[0.5, 3.0, -1.0, 2.0]], dtype=torch.bfloat16), 3)
    assert actual.ids.tolist() == [[1, 3, 0]]
    assert actual.logits.tolist() == [[3.0, 2.0, 0.5]]
    assert actual.logits.dtype == torch.float32


@pytest.mark.parametrize("widths", [(4, 4), (5, 3), (7, 1)])
@pytest.mark.parametrize("k", [1, 4, 8])
def test_topk_of_vocabulary_slices_equals_topk_of_the_whole(
    widths: tuple[int, int], k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    starts, slices = (0, widths[0]), logits.split(widths, dim=-1)
    sent: list[torch.Tensor] = []
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda _: 2)

    def gathers(fill: Callable[[list[torch.Tensor]], None]) -> None:
        def all_gather(parts: list[torch.Tensor], ours: torch.Tensor, group: Any) -> None:
            sent.append(ours)
            fill(parts)

        monkeypatch.setattr(torch.distributed, "all_gather", all_gather)

    gathers(lambda parts: [part.zero_() for part in parts])
    for start, part in zip(starts, slices, strict=True):
        topk(part, k, group="tp", vocab_start=start)
    first, second = sent
    gathers(lambda parts: [part.copy_(each) for part, each in zip(parts, (first, second), strict=True)])
    expected = topk(logits, k)
    for start, part in zip(starts, slices, strict=True):
        actual = topk(part, k, group="tp", vocab_start=start)
        assert torch.equal(actual.ids, expected.ids)
        assert torch.equal(actual.logits, expected.logits)
