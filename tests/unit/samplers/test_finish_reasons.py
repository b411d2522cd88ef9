"""The end of a response: its EOS token, truncation and finish reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from titanrl.components.samplers.scripted import Scripted
from titanrl.components.samplers.torch import Torch, TorchSampler
from titanrl.components.samplers.vllm.engine import _completion_of
from titanrl.config.engine_tables import Training
from titanrl.data.collate import collate_rollouts
from titanrl.engine import Engine, EngineConfig
from titanrl.models import tiny
from titanrl.protocols import Completion, RolloutRequest, SamplerContext

EOS = 2
LIMIT = 4
CUT, ENDED, FULL = [5, 6, 7, 8, 9, 10], [5, 6, 7, EOS], [5, 6, 7, 8]
"""Tokens that a model would generate: beyond the limit, up to it with EOS, up to it without EOS."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.create(tmp_path_factory.mktemp("model"))


def decoded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tables: Sequence[Sequence[int]], limit: int, end: int = EOS
) -> list[Completion]:
    """Return the completions of the `torch` sampler if the model generates the given tokens."""

    def pick(self: Any, logits: Any, seeds: torch.Tensor, position: int, temperature: Any) -> Any:
        # Rows that are done may be dropped from the batch: their seeds tell those that are left.
        rows = [order.index(int(seed)) for seed in seeds]
        tokens = [tables[row][min(position, len(tables[row]) - 1)] for row in rows]
        return torch.tensor(tokens), torch.full((len(rows),), -0.5)

    training = Training(seq_len=64, mixed_precision_param="float32")
    engine = Engine(EngineConfig(model=str(folder), training=training))
    context = SamplerContext(model_path="", eos_ids=(end,), max_length=64, seed=0, engine=engine)
    order = list(range(len(tables)))
    monkeypatch.setattr(TorchSampler, "_pick", pick)
    monkeypatch.setattr("titanrl.components.samplers.torch.sampler.sample_seed", lambda *key: key[-1])
    rows = [RolloutRequest([1, 5], 0, sample) for sample in order]
    return Torch(max_response_tokens=limit).start(context).sample(rows, step=0, seed=0)


@pytest.mark.parametrize("end", [EOS, 0])
def test_response_ends_with_one_eos_also_if_pad_is_eos(
    folder: Path, monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    """Four rows, so that those that ended stay in the batch for a while; padded ids of a batch are 0."""
    goes_on = [7, 8, 9, 10, 11, 12]
    answers = decoded(folder, monkeypatch, [[5, 6, end, end, end], goes_on, goes_on, goes_on], 6, end)
    assert list(answers[0].ids) == [5, 6, end]
    assert len(answers[0].logprobs) == 3
    assert [list(answer.ids) for answer in answers[1:]] == [goes_on] * 3
    rows = [RolloutRequest([1, 5], 0, sample) for sample in range(4)]
    batch = collate_rollouts(rows, answers, decode=str, version=0)
    assert batch["labels"][0][batch["loss_mask"][0]].tolist() == [5, 6, end]


def test_scripted_eos_is_not_duplicated(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    context = SamplerContext(model_path="", eos_ids=(EOS,), max_length=32, seed=0, tokenizer=tokenizer)
    script = Scripted(answers=("ab", "ab<eos>", "ab<eos>cd"), max_response_tokens=8).start(context)
    answers = script.sample([RolloutRequest([1], 0, sample) for sample in range(3)], step=0, seed=0)
    assert [list(answer.ids) for answer in answers] == [[*tokenizer.encode("ab"), EOS]] * 3
    assert [answer.finish_reason for answer in answers] == [0, 0, 0]


def test_finish_reason_is_stop_only_after_eos(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = decoded(folder, monkeypatch, [CUT, ENDED, FULL], LIMIT)
    assert [list(answer.ids) for answer in answers] == [CUT[:LIMIT], ENDED, FULL]
    assert [answer.finish_reason for answer in answers] == [1, 0, 1]


def test_scripted_response_is_truncated_like_a_models(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    context = SamplerContext(model_path="", eos_ids=(EOS,), max_length=32, seed=0, tokenizer=tokenizer)
    script = Scripted(answers=("abcdef", "abc", "abcd"), max_response_tokens=LIMIT).start(context)
    answers = script.sample([RolloutRequest([1], 0, sample) for sample in range(3)], step=0, seed=0)
    assert [len(answer.ids) for answer in answers] == [LIMIT] * 3
    assert [answer.ids[-1] == EOS for answer in answers] == [False, True, False]
    assert [answer.finish_reason for answer in answers] == [1, 0, 1]


@pytest.mark.parametrize(
    ("ids", "reported", "reason"),
    [(CUT[:LIMIT], "length", 1), (ENDED, "stop", 0), (FULL, "length", 1), ([5], "abort", 2), ([5], None, 2)],
)
@pytest.mark.vllm
def test_finish_reason_of_vllm_is_mapped(ids: list[int], reported: str | None, reason: int) -> None:
    outputs, logprobs = pytest.importorskip("vllm.outputs"), pytest.importorskip("vllm.logprobs")
    entries = [{token: logprobs.Logprob(-0.5)} for token in ids]
    completion = outputs.CompletionOutput(0, "", ids, None, entries, finish_reason=reported)
    assert _completion_of(completion).finish_reason == reason
