"""Sampled ids -> batch: label alignment, masks, ids untouched."""

from __future__ import annotations

import torch

from titanrl.data.collate import collate_rollouts, trim
from titanrl.protocols import Completion, RolloutRequest
from titanrl.protocols.batch import check


def batch():
    rows = [
        RolloutRequest([10, 11, 12], 0, 0, "q", "a"),
        RolloutRequest([10, 11, 12], 0, 1, "q", "a"),
        RolloutRequest([20], 1, 0, "r", "b"),
    ]
    samples = [
        Completion([20, 21, 2], [-1.0, -2.0, -3.0], 0),
        Completion([7], [-0.5], 1),
        Completion([0, 2], [-4.0, -5.0], 0),
    ]
    return collate_rollouts(rows, samples, decode=lambda ids: ",".join(map(str, ids)), version=3)


def test_labels_are_the_ids_one_place_on_and_the_first_response_token_is_trained():
    rows = batch()
    assert rows["input_ids"].tolist() == [[10, 11, 12, 20, 21], [10, 11, 12, 0, 0], [20, 0, 0, 0, 0]]
    assert rows["labels"].tolist() == [[11, 12, 20, 21, 2], [11, 12, 7, 0, 0], [0, 2, 0, 0, 0]]
    assert rows["loss_mask"].int().tolist() == [[0, 0, 1, 1, 1], [0, 0, 1, 0, 0], [1, 1, 0, 0, 0]]


def test_mask_covers_the_sampled_tokens_end_token_included_even_if_its_id_is_zero():
    rows = batch()
    sampled = [row[mask].tolist() for row, mask in zip(rows["labels"], rows["loss_mask"], strict=True)]
    assert sampled == [[20, 21, 2], [7], [0, 2]]


def test_logprobs_stand_at_their_labels():
    rows = batch()
    assert rows["sampler_logprob"][0].tolist() == [0, 0, -1, -2, -3]
    assert rows["sampler_logprob"][2].tolist() == [-4, -5, 0, 0, 0]


def test_batch_keeps_the_schema_and_its_texts():
    rows = batch()
    check(rows, "sample", ("input_ids", "labels", "loss_mask", "sampler_logprob", "group_id", "row_id"))
    assert list(rows["text", "response"]) == ["20,21,2", "7", "0,2"]
    assert rows["policy_version"].tolist() == [3, 3, 3]
    assert len(set(rows["row_id"].tolist())) == 3


def test_trim_pads_and_cuts_token_keys_alone():
    rows = batch()
    longer = trim(rows, 7)
    assert longer["labels"].shape == (3, 7)
    assert not longer["loss_mask"][:, 5:].any()
    assert torch.equal(trim(longer, 5)["labels"], rows["labels"])
    assert longer["group_id"].tolist() == [0, 0, 1]
