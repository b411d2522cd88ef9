"""Faults that users of other frameworks met at an answer's end: what ends it, what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from titanrl.components.samplers.scripted import Scripted
from titanrl.components.samplers.torch import Torch, TorchSampler
from titanrl.components.samplers.vllm.engine import _sample_of
from titanrl.config.engine_tables import Training
from titanrl.data.collate import collate_rollouts
from titanrl.engine import Engine, EngineConfig
from titanrl.models import tiny
from titanrl.protocols import Completion, RolloutRequest, SamplerContext

EOS = 2
LIMIT = 4
CUT, ENDED, FULL = [5, 6, 7, 8, 9, 10], [5, 6, 7, EOS], [5, 6, 7, 8]
"""What a model would go on to write: past the limit, up to it with its end token, up to it without."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.create(tmp_path_factory.mktemp("model"))


def decoded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tables: Sequence[Sequence[int]], limit: int, end: int = EOS
) -> list[Completion]:
    """Returns what the `torch` sampler makes of rows whose models write the given tokens."""

    def pick(self: Any, logits: Any, seeds: torch.Tensor, position: int, temperature: Any) -> Any:
        # Rows that are done may be dropped from the batch: their seeds tell those that are left.
        rows = [order.index(int(seed)) for seed in seeds]
        tokens = [tables[row][min(position, len(tables[row]) - 1)] for row in rows]
        return torch.tensor(tokens), torch.full((len(rows),), -0.5)

    training = Training(seq_len=64, mixed_precision_param="float32")
    engine = Engine(EngineConfig(model=str(folder), training=training))
    host = SamplerContext(model_path="", eos_ids=(end,), max_length=64, seed=0, engine=engine)
    order = list(range(len(tables)))
    monkeypatch.setattr(TorchSampler, "_pick", pick)
    monkeypatch.setattr("titanrl.components.samplers.torch.sampler.sample_seed", lambda *key: key[-1])
    rows = [RolloutRequest([1, 5], 0, sample) for sample in order]
    return Torch(max_response_tokens=limit).start(host).sample(rows, step=0, seed=0)


@pytest.mark.parametrize("end", [EOS, 0])
def test_k1_19_an_answer_ends_with_one_end_token_whatever_padding_is(
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


def test_k1_19_a_written_end_token_is_not_doubled(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    host = SamplerContext(model_path="", eos_ids=(EOS,), max_length=32, seed=0, tokenizer=tokenizer)
    script = Scripted(answers=("ab", "ab<eos>", "ab<eos>cd"), max_response_tokens=8).start(host)
    answers = script.sample([RolloutRequest([1], 0, sample) for sample in range(3)], step=0, seed=0)
    assert [list(answer.ids) for answer in answers] == [[*tokenizer.encode("ab"), EOS]] * 3
    assert [answer.finish_reason for answer in answers] == [0, 0, 0]


def test_k1_20_only_an_end_token_finishes_an_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = decoded(folder, monkeypatch, [CUT, ENDED, FULL], LIMIT)
    assert [list(answer.ids) for answer in answers] == [CUT[:LIMIT], ENDED, FULL]
    assert [answer.finish_reason for answer in answers] == [1, 0, 1]


def test_k1_20_a_script_is_cut_like_a_model(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    host = SamplerContext(model_path="", eos_ids=(EOS,), max_length=32, seed=0, tokenizer=tokenizer)
    script = Scripted(answers=("abcdef", "abc", "abcd"), max_response_tokens=LIMIT).start(host)
    answers = script.sample([RolloutRequest([1], 0, sample) for sample in range(3)], step=0, seed=0)
    assert [len(answer.ids) for answer in answers] == [LIMIT] * 3
    assert [answer.ids[-1] == EOS for answer in answers] == [False, True, False]
    assert [answer.finish_reason for answer in answers] == [1, 0, 1]


@pytest.mark.parametrize(
    ("ids", "said", "reason"),
    [(CUT[:LIMIT], "length", 1), (ENDED, "stop", 0), (FULL, "length", 1), ([5], "abort", 2), ([5], None, 2)],
)
def test_k1_20_an_engines_word_for_it_is_taken(ids: list[int], said: str | None, reason: int) -> None:
    entries = [{token: SimpleNamespace(logprob=-0.5)} for token in ids]
    completion = SimpleNamespace(token_ids=ids, logprobs=entries, finish_reason=said)
    assert _sample_of(completion).finish_reason == reason
