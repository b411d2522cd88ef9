"""The JSON Lines source: what it reads, and what it says of rows that it can't."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import titanrl
from titanrl import Prompt


def rows(tmp_path: Path, text: str, **keys: Any) -> Any:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text, encoding="utf-8")
    return titanrl.build("source", {"name": "jsonl", "path": str(path), **keys}).open()


def test_rows_of_text_and_messages_are_read(tmp_path: Path) -> None:
    text = '{"prompt": "2 + 2", "answer": "4"}\n\n'
    text += '{"messages": [{"role": "user", "content": "é"}], "answer": {"a": 1}}\n'
    found = rows(tmp_path, text)
    assert len(found) == 2
    assert found[0] == Prompt("2 + 2", "4")
    assert found[1] == Prompt(({"role": "user", "content": "é"},), '{"a": 1}')


def test_line_separators_inside_texts_do_not_split_rows(tmp_path: Path) -> None:
    assert rows(tmp_path, '{"prompt": "a\u2028b\u0085c"}')[0] == Prompt("a\u2028b\u0085c", "")


def test_system_message_is_put_first_where_there_is_none(tmp_path: Path) -> None:
    own = '{"prompt": [{"role": "system", "content": "own"}, {"role": "user", "content": "q"}]}'
    found = rows(tmp_path, '{"prompt": "q"}\n' + own, system="Be brief.")
    assert found[0].messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "q"})
    assert found[1].messages[0] == {"role": "system", "content": "own"}


def test_keys_can_be_named(tmp_path: Path) -> None:
    found = rows(tmp_path, '{"q": "2 + 2", "a": 4}', prompt_key="q", answer_key="a")
    assert found[0] == Prompt("2 + 2", "4")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "must be an object, got list"),
        ('{"prompts": "q"}', "has no 'messages' or 'prompt'; did you mean 'prompts'? Keys: prompts."),
        ('{"prompt": ""}', "prompt must be a text or a list of messages, not empty"),
        ('{"prompt": 3}', "prompt must be a text or a list of messages"),
        ('{"messages": []}', "messages must be a text or a list of messages, not empty"),
        ('{"messages": ["q"]}', "messages[0] must be an object with role and content"),
        ('{"messages": [{"role": "usr", "content": "q"}]}', "messages[0].role must be one of system, user"),
        ('{"messages": [{"role": "user"}]}', "messages[0].content must be a text, got None"),
    ],
)
def test_invalid_row_is_named_with_file_line_and_remedy(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(titanrl.ConfigError) as error:
        rows(tmp_path, '{"prompt": "good"}\n' + line)
    assert f"{tmp_path}/prompts.jsonl:2: " in str(error.value)
    assert message in str(error.value)


def test_invalid_rows_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(titanrl.ConfigError) as error:
        rows(tmp_path, "x\n" * 12)
    assert "prompts.jsonl:1: not JSON" in str(error.value)
    assert str(error.value).endswith("(12 rows; also 2, 3, ...)")


def test_answer_key_reaches_into_tables_and_must_exist(tmp_path: Path) -> None:
    line = '{"prompt": "2 + 2", "reward_model": {"ground_truth": 4}, "a.b": "5"}'
    (prompt,) = rows(tmp_path, line, answer_key="reward_model.ground_truth")
    assert prompt.answer == "4"
    assert prompt.columns["reward_model"] == {"ground_truth": 4}
    (prompt,) = rows(tmp_path, line, answer_key="a.b")
    assert prompt.answer == "5"
    with pytest.raises(
        titanrl.ConfigError, match=r"did you mean 'reward_model.ground_truth'\?; keys: prompt"
    ):
        rows(tmp_path, line, answer_key="reward_model.ground_truht")


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_file_without_rows_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(titanrl.ConfigError, match="has no rows; add at least one"):
        rows(tmp_path, text)


def test_missing_file_is_an_error() -> None:
    with pytest.raises(titanrl.ConfigError, match=r"'nowhere\.jsonl' does not exist"):
        titanrl.build("source", {"name": "jsonl", "path": "nowhere.jsonl"}).open()


def test_parquet_and_saved_datasets_equal_json_lines(tmp_path: Path) -> None:
    import datasets

    records = [{"question": "2 + 2", "answer": 4}, {"question": "1 + 1", "answer": None}]
    table = datasets.Dataset.from_list(records)
    table.to_parquet(tmp_path / "prompts.parquet")
    datasets.DatasetDict({"train": table, "test": table.select([1])}).save_to_disk(tmp_path / "saved")
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, records)))
    keys = {"name": "prompt_dataset", "prompt_key": "question", "system": "Be brief."}
    opened = [
        titanrl.build("source", {**keys, "path": str(tmp_path / name)}).open()
        for name in ("prompts.jsonl", "prompts.parquet", "saved")
    ]
    system = {"role": "system", "content": "Be brief."}
    expected = [
        Prompt((system, {"role": "user", "content": "2 + 2"}), "4"),
        Prompt((system, {"role": "user", "content": "1 + 1"}), ""),
    ]
    assert [[prompts[0], prompts[1]] for prompts in opened] == [expected] * 3
    test = titanrl.build("source", {**keys, "path": str(tmp_path / "saved"), "split": "test"})
    assert test.open()[0] == expected[1]
    wrong = titanrl.build("source", {**keys, "path": str(tmp_path / "saved"), "prompt_key": "prompt"})
    with pytest.raises(titanrl.ConfigError, match=r"saved\[train\] row 0: has no 'prompt'"):
        wrong.open()
