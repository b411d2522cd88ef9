"""Sources as worker processes get them: pickled, with what turns their examples into tokens."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import datasets
import pytest

import titanrl
from titanrl.data.encode import TokenizedExample, tokenize_example
from titanrl.data.tokenizer import ChatTokenizer
from titanrl.models import tiny
from titanrl.protocols import Example

RECORD = {"prompt": "1 + 1?", "completion": "2", "answer": "2"}
TASK = {"dataset": "chain_sum", "size": 5}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two records as lines of JSON, as Parquet, and as a dataset on disk."""
    (tmp_path / "rows.jsonl").write_text(f"\n{json.dumps(RECORD)}\n{json.dumps(RECORD | {'prompt': '?'})}\n")
    table = datasets.Dataset.from_list([RECORD, RECORD | {"prompt": "?"}])
    table.to_parquet(tmp_path / "rows.parquet")
    table.save_to_disk(tmp_path / "saved")
    return tmp_path


SOURCES: list[dict[str, Any]] = [
    {"name": "jsonl", "path": "rows.jsonl"},
    *({"name": "prompt_dataset", "path": path} for path in ("rows.jsonl", "rows.parquet", "saved")),
    *(
        {"name": "dataset", "format": "prompt_completion", "path": path}
        for path in ("rows.jsonl", "rows.parquet", "saved")
    ),
    {"name": "reasoning_gym", **TASK},
    {"name": "reasoning_gym_demonstrations", **TASK},
    {"name": "tasks", "prompt": "Guess.", "size": 5, "first": 2},
]


def test_every_source_has_a_case() -> None:
    built_in = {
        name
        for name in titanrl.names("source")
        if titanrl.registry.component_class("source", name).__module__.startswith("titanrl.components.")
    }
    assert {table["name"] for table in SOURCES} == built_in


@pytest.mark.slow
@pytest.mark.parametrize("table", SOURCES, ids=lambda table: "-".join(map(str, table.values())))
def test_pickled_source_gives_the_same_examples_at_the_same_indices(
    table: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    source = titanrl.build("source", table).open()
    sent = pickle.loads(pickle.dumps(source))
    assert len(sent) == len(source) >= 2
    assert [sent[i] for i in range(len(sent))] == [source[i] for i in range(len(source))]
    if hasattr(source, "place"):
        assert sent.location(1) == source.location(1)


def test_pickled_tokenizer_gives_the_same_ids_and_rows_can_be_sent_back(tmp_path: Path) -> None:
    tiny.create(tmp_path / "model")
    tokens = ChatTokenizer(
        tmp_path / "model", "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    sent = pickle.loads(pickle.dumps(tokens))
    row = Example(({"role": "user", "content": "q"},), "answer")
    encoded = tokenize_example(row, sent)
    assert encoded.ids
    assert pickle.loads(pickle.dumps(encoded)) == tokenize_example(row, tokens)
    assert isinstance(encoded, TokenizedExample)
