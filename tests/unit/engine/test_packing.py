"""Micro-batches: which rows go together, and where their tokens stand."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from tests.unit.engine.conftest import make_batch
from titanrl.engine.attention import attention_masks
from titanrl.engine.packing import MicroBatch, blank, lay_out, pad_to, plan

CPU = torch.device("cpu")


def rows_of(micro_batch: MicroBatch) -> list[list[int]]:
    """Returns the token ids that stand in each row's places, padding included."""
    layout = micro_batch.layout
    line = micro_batch.tokens[0]
    return line[layout.token[0]].view(int(layout.num_rows), -1).tolist()


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    max_tokens=st.integers(1, 60),
    seed=st.integers(0, 1000),
)
def test_plan_keeps_groups_whole_and_within_the_budget(sizes: list[int], max_tokens: int, seed: int) -> None:
    group_id = torch.repeat_interleave(torch.arange(len(sizes)) * 3, torch.tensor(sizes))
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(len(group_id), 6, generator=generator) < 0.3
    ids = torch.randint(2, (len(group_id), 6), generator=generator)
    batch = TensorDict({"input_ids": ids, "loss_mask": mask, "group_id": group_id}, batch_size=[len(ids)])
    parts = plan(batch, max_tokens)
    seen = torch.cat(parts).tolist() if parts else []
    live = [row for row in range(len(group_id)) if mask[group_id == group_id[row]].any()]
    assert sorted(seen) == live
    for part in parts:
        groups = group_id[part].unique()
        assert len(part) == sum(int((group_id == group).sum()) for group in groups)
        assert lay_out(batch, part, CPU).tokens.numel() <= max_tokens + len(part) or len(groups) == 1


def test_lay_out_computes_each_distinct_token_once() -> None:
    batch = make_batch()
    micro_batch = lay_out(batch, torch.arange(4), CPU)
    length = [int(mask.nonzero().max()) + 1 for mask in batch["loss_mask"][:4]]
    assert micro_batch.tokens.shape == (1, 12 + sum(n - 12 for n in length))
    width = max(length)
    places = rows_of(micro_batch)
    for row, n in enumerate(length):
        assert places[row][:n] == batch["input_ids"][row, :n].tolist()
    assert micro_batch.batch["loss_mask"].shape == (4, width)


def test_a_row_that_trains_nothing_costs_nothing_and_leaves_the_prompt_shared() -> None:
    batch = make_batch()
    before = lay_out(batch, torch.arange(4), CPU)
    for row in range(4):
        dead = batch.clone()
        dead["loss_mask"][row] = False
        own = int(before.layout.row.eq(row).sum())
        assert lay_out(dead, torch.arange(4), CPU).tokens.numel() == before.tokens.numel() - own


def test_lay_out_chooses_the_hidden_states_that_predict_trained_labels() -> None:
    batch = make_batch()
    micro_batch = lay_out(batch, torch.arange(4, 9), CPU)
    mask = batch["loss_mask"][4:9, : micro_batch.batch["loss_mask"].shape[1]]
    assert micro_batch.tokens[0, micro_batch.chosen].tolist() == micro_batch.batch["input_ids"][mask].tolist()
    positions = mask.nonzero()[:, 1]
    assert micro_batch.positions[0, micro_batch.chosen].tolist() == positions.tolist()


def test_lay_out_shares_nothing_between_single_rows() -> None:
    batch = make_batch()
    batch["group_id"] = torch.arange(len(batch))
    micro_batch = lay_out(batch, torch.arange(3), CPU)
    assert micro_batch.layout.copy_place.numel() == 0
    assert (micro_batch.layout.row >= 0).all()


def test_pad_to_leaves_real_tokens_where_they_are() -> None:
    micro_batch = lay_out(make_batch(), torch.arange(4), CPU)
    old = micro_batch.tokens.shape[1]
    padded = pad_to(micro_batch, old + 70)
    assert padded.tokens.shape == (1, old + 70)
    assert rows_of(padded)[:4] == rows_of(micro_batch)
    assert len(set(padded.layout.place[0].tolist())) == old + 70


def test_blank_trains_nothing() -> None:
    micro_batch = blank(make_batch(), CPU)
    assert micro_batch.tokens.shape == (1, 2)
    assert len(micro_batch.batch) == 2, "losses on pairs refuse an odd number of rows"
    assert micro_batch.num_trained == 0
    assert not micro_batch.batch["loss_mask"].any()
    assert len(micro_batch.chosen) == 1


def test_block_mask_lets_a_token_see_its_row_and_nothing_else() -> None:
    from torchtitan.models.common.attention import FlexAttention

    micro_batch = pad_to(lay_out(make_batch(), torch.arange(9), CPU), 256)
    mask = attention_masks(FlexAttention.Config(), [micro_batch.layout])
    length = micro_batch.tokens.shape[1]
    query, key = torch.arange(length)[:, None], torch.arange(length)[None]
    zero = torch.zeros((), dtype=torch.int64)
    sees = mask.mask_mod(zero, zero, query, key)
    layout = micro_batch.layout
    width = layout.token.shape[1] // int(layout.num_rows)
    for token in range(length):
        row, place = divmod(int(layout.place[0, token]), width)
        wanted = layout.token[0, row * width : row * width + place + 1]
        assert sees[token].nonzero().squeeze(1).tolist() == sorted(wanted.tolist())
