"""FlexAttention's block mask for a GPU, and causal and full blocks on the CPU."""

from __future__ import annotations

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.unit.engine.conftest import make_batch
from titanrl.engine.attention import PackedAttention, mask_mod
from titanrl.engine.packing import pack_sequences, pad_to

LENGTH = 192


def visible_spans() -> torch.Tensor:
    """Returns ``visible_until`` [2, T]; in the first sequence two responses diverge."""
    batch = make_batch()
    batch["input_ids"][3, :20] = batch["input_ids"][2, :20]
    parts = [
        pack_sequences(batch, rows, torch.device("cpu")) for rows in (torch.arange(9), torch.tensor([4, 6]))
    ]
    return torch.cat([pad_to(part, LENGTH).visible_until for part in parts])


def test_block_mask_has_causal_and_full_blocks() -> None:
    visible_until = visible_spans()
    mask = create_block_mask(mask_mod(visible_until), 2, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=32)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, LENGTH, heads, 8, generator=generator) for heads in (6, 2, 2))
    flex = flex_attention(
        *(x.transpose(1, 2) for x in (query, key, value)), block_mask=mask, enable_gqa=True, scale=0.3
    ).transpose(1, 2)
    attention = PackedAttention.Config().build()
    for line in (0, 1):
        inputs = (x[line : line + 1] for x in (query, key, value))
        actual = attention(*inputs, attention_masks=visible_until[line : line + 1], scale=0.3)
        torch.testing.assert_close(actual, flex[line : line + 1], atol=1e-5, rtol=0)


def test_block_mask_skips_fully_masked_blocks() -> None:
    """Blocks of 32; of 192 tokens, 117 are two rows of 64 and 53 that share nothing, the rest padding."""
    visible_until = torch.tensor([[64] * 64 + [117] * 53 + list(range(118, 193))])
    mask = create_block_mask(mask_mod(visible_until), 1, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=32)
    computed = mask.kv_num_blocks + mask.full_kv_num_blocks
    assert computed.flatten().tolist() == [1, 2, 1, 2, 1, 1]


def test_attention_without_packing_is_causal_in_each_row() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(3, 9, heads, 8, generator=generator) for heads in (6, 2, 2))
    attention = PackedAttention.Config().build()
    actual = attention(query, key, value, enable_gqa=True)
    for row in range(3):
        inputs = (x[row : row + 1] for x in (query, key, value))
        alone = attention(*inputs, attention_masks=torch.full((1, 9), 9))
        torch.testing.assert_close(actual[row : row + 1], alone, atol=1e-6, rtol=0)
