"""Sampled ids -> batch: label alignment, masks, ids untouched."""

from __future__ import annotations

import random

import pytest
import torch

from titanrl.data.collate import collate_rollouts
from titanrl.ops.padding import trim
from titanrl.protocols import Completion, FinishReason, RolloutRequest
from titanrl.protocols.batch import KEYS, Key, check


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


def test_labels_are_shifted_by_one_and_the_first_response_token_is_trained():
    rows = batch()
    assert rows["input_ids"].tolist() == [[10, 11, 12, 20, 21], [10, 11, 12, 0, 0], [20, 0, 0, 0, 0]]
    assert rows["labels"].tolist() == [[11, 12, 20, 21, 2], [11, 12, 7, 0, 0], [0, 2, 0, 0, 0]]
    assert rows["loss_mask"].int().tolist() == [[0, 0, 1, 1, 1], [0, 0, 1, 0, 0], [1, 1, 0, 0, 0]]


def test_loss_mask_covers_sampled_tokens_and_eos_even_with_id_zero():
    rows = batch()
    sampled = [row[mask].tolist() for row, mask in zip(rows["labels"], rows["loss_mask"], strict=True)]
    assert sampled == [[20, 21, 2], [7], [0, 2]]


def test_logprobs_are_aligned_with_labels():
    rows = batch()
    assert rows["sampler_logprob"][0].tolist() == [0, 0, -1, -2, -3]
    assert rows["sampler_logprob"][2].tolist() == [-4, -5, 0, 0, 0]


def test_batch_follows_the_schema_and_keeps_texts():
    rows = batch()
    check(rows, "sample", ("input_ids", "labels", "loss_mask", "sampler_logprob", "group_id", "row_id"))
    assert list(rows["text", "response"]) == ["20,21,2", "7", "0,2"]
    assert rows["policy_version"].tolist() == [3, 3, 3]
    assert len(set(rows["row_id"].tolist())) == 3


def random_rollouts(seed: int) -> tuple[list[RolloutRequest], list[Completion]]:
    """Single-turn rollouts of unequal lengths, without masks or versions."""
    rng = random.Random(seed)
    requests, completions = [], []
    for group in range(5):
        prompt = [rng.randrange(100) for _ in range(rng.randint(1, 9))]
        for sample in range(3):
            length = rng.randint(1, 12)
            requests.append(RolloutRequest(prompt, group, sample, f"p{group}", f"a{group}"))
            ids, logprobs = (
                [rng.randrange(100) for _ in range(length)],
                [-rng.random() for _ in range(length)],
            )
            completions.append(Completion(ids, logprobs, rng.randint(0, 2)))
    return requests, completions


@pytest.mark.parametrize("seed", range(4))
def test_single_turn_batch_equals_a_slow_reference_bitwise(seed: int) -> None:
    requests, completions = random_rollouts(seed)
    batch = collate_rollouts(requests, completions, decode=str, version=7)
    length = max(len(r.prompt_ids) + len(c.ids) for r, c in zip(requests, completions, strict=True)) - 1
    for row, (request, completion) in enumerate(zip(requests, completions, strict=True)):
        raw = [*request.prompt_ids, *completion.ids]
        for t in range(length):
            inside = t + 1 < len(raw)
            is_response = inside and t + 1 >= len(request.prompt_ids)
            logprob = completion.logprobs[t + 1 - len(request.prompt_ids)] if is_response else 0.0
            assert batch["input_ids"][row, t] == (raw[t] if inside else 0)
            assert batch["labels"][row, t] == (raw[t + 1] if inside else 0)
            assert batch["loss_mask"][row, t] == is_response
            assert batch["sampler_logprob"][row, t] == torch.tensor(logprob)
            assert batch["policy_version_token"][row, t] == (7 if is_response else -1)
        assert batch["row_id"][row] == request.prompt_index * 2**20 + request.sample_index
        assert batch["finish_reason"][row] == completion.finish_reason
    assert batch["group_id"].tolist() == [request.prompt_index for request in requests]
    assert batch["policy_version"].tolist() == [7] * len(requests)
    dtypes = {key: batch[key].dtype for key in ("sampler_logprob", "finish_reason", "policy_version_token")}
    assert dtypes == {
        "sampler_logprob": torch.float32,
        "finish_reason": torch.int8,
        "policy_version_token": torch.int32,
    }


def test_only_tokens_that_the_policy_sampled_are_trained() -> None:
    """Two turns around a tool result: prompt 1 2, turn 5 6, tool result 7 8, turn 9."""
    completion = Completion(
        ids=[5, 6, 7, 8, 9],
        logprobs=[-0.5, -1.0, 3.0, float("nan"), -2.0],
        finish_reason=FinishReason.STOP,
        mask=[True, True, False, False, True],
        versions=[4, 4, 0, 9, 6],
    )
    batch = collate_rollouts([RolloutRequest([1, 2], 0, 0)], [completion], decode=str, version=6)
    assert batch["labels"].tolist() == [[2, 5, 6, 7, 8, 9]]
    assert batch["loss_mask"].tolist() == [[False, True, True, False, False, True]]
    assert batch["sampler_logprob"].tolist() == [[0.0, -0.5, -1.0, 0.0, 0.0, -2.0]]
    assert batch["policy_version_token"].tolist() == [[-1, 4, 4, -1, -1, 6]]
    assert batch["policy_version"].tolist() == [4]
    check(batch, "sample")


def test_policy_version_is_that_of_the_first_sampled_token() -> None:
    """The first token is given; a row without any sampled token has the sampler's version."""
    late = Completion([5, 6, 7], [0.0, -1.0, -1.0], FinishReason.STOP, [False, True, True], [9, 3, 4])
    empty = Completion([5], [0.0], FinishReason.ABORT, [False], [9])
    requests = [RolloutRequest([1], 0, 0), RolloutRequest([1], 0, 1)]
    batch = collate_rollouts(requests, [late, empty], decode=str, version=8)
    assert batch["policy_version"].tolist() == [3, 8]
    assert not batch["loss_mask"][1].any()


@pytest.mark.parametrize("field", ["logprobs", "mask", "versions"])
def test_completion_with_lists_of_unequal_length_is_refused(field: str) -> None:
    completion = Completion([5, 6], [-1.0, -1.0], FinishReason.STOP)._replace(**{field: [1]})
    with pytest.raises(ValueError, match=rf"prompt 3: {field} must have one entry per token, 2, got 1"):
        collate_rollouts([RolloutRequest([1], 3, 0)], [completion], decode=str, version=0)


def test_columns_source_and_identity_of_the_prompt_are_in_the_batch() -> None:
    requests = [
        RolloutRequest([1], 0, 0, columns={"level": 3, "tests": ["a"]}, prompt_id=2**62, source="jsonl"),
        RolloutRequest([1], 1, 0),
    ]
    batch = collate_rollouts(requests, [Completion([5], [-1.0], 0)] * 2, decode=str, version=0)
    assert batch["prompt_id"].tolist() == [2**62, 0]
    assert list(batch["text", "source"]) == ["jsonl", ""]
    assert list(batch["text", "columns"]) == [{"level": 3, "tests": ["a"]}, {}]
    assert batch[1:]["text", "columns"][0] == {}
    assert batch[0:1]["text", "columns"][0] == {"level": 3, "tests": ["a"]}


def test_registered_keys_come_from_the_completion_or_the_column(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {
        "turn": Key("[N, L]", "int32", "sample", "number of the turn"),
        "level": Key("[N]", "float32", "sample", "difficulty of the prompt"),
        "tool": Key("[N]", "text", "sample", "name of the tool"),
    }
    for name, key in keys.items():
        monkeypatch.setitem(KEYS, name, key)
    requests = [RolloutRequest([1, 2], 0, 0, extras={"level": 3}), RolloutRequest([1], 1, 0)]
    completions = [
        Completion([5, 6], [-1.0, -1.0], 0, extras={"turn": [1, 2], "tool": "a"}),
        Completion([7], [-1.0], 0, extras={"turn": [4], "tool": "b", "level": 0.5}),
    ]
    batch = collate_rollouts(requests, completions, decode=str, version=0)
    assert batch["turn"].tolist() == [[0, 1, 2], [4, 0, 0]]
    assert batch["level"].tolist() == [3.0, 0.5]
    assert list(batch["tool"]) == ["a", "b"]
    without = [requests[0]._replace(extras={}), requests[1]]
    with pytest.raises(ValueError, match="completion 0 of prompt 0 has no 'level', which other rows have"):
        collate_rollouts(without, completions, decode=str, version=0)
    unknown = [Completion([5], [-1.0], 0, extras={"turns": 1})]
    with pytest.raises(ValueError, match="'turns' is no key of the batch; register_key"):
        collate_rollouts(requests[1:], unknown, decode=str, version=0)
    longer = completions[0]._replace(extras={"turn": [1, 2, 3]})
    with pytest.raises(ValueError, match="prompt 0: turn must have one entry per token, 2, got 3"):
        collate_rollouts(requests[:1], [longer], decode=str, version=0)


def test_trim_pads_and_cuts_token_keys_only():
    rows = batch()
    longer = trim(rows, 7)
    assert longer["labels"].shape == (3, 7)
    assert not longer["loss_mask"][:, 5:].any()
    assert torch.equal(trim(longer, 5)["labels"], rows["labels"])
    assert longer["group_id"].tolist() == [0, 0, 1]
