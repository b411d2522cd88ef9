"""The source `dataset`: formats, file types, and messages for records that it cannot read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import titanrl
from titanrl.protocols import Example, ProcessStep

USER, OTHER = {"role": "user", "content": "q"}, {"role": "user", "content": "and?"}
GOOD, BAD = {"role": "assistant", "content": "good"}, {"role": "assistant", "content": "bad"}


def settings(path: Path, **keys: Any) -> Any:
    return titanrl.build("source", {"name": "dataset", "path": str(path), **keys})


def rows(tmp_path: Path, record: Any, **keys: Any) -> tuple[Example, ...]:
    """Returns the rows of one record."""
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(record))
    return settings(path, **keys).open()[0]  # type: ignore[no-any-return]


def refusal(tmp_path: Path, text: str, **keys: Any) -> str:
    """Returns what is said of the first row of a file, with its place."""
    path = tmp_path / "data.jsonl"
    path.write_text(text)
    examples = settings(path, **keys).open()
    with pytest.raises(ValueError, match=r"\.") as error:
        examples[0]
    return f"{examples.location(0)}: {error.value}"


def scalars(found: Sequence[Example], key: str) -> list[float]:
    return [row.scalars[key] for row in found]


def test_conversation_is_one_row_without_a_prompt(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, {"messages": [USER, GOOD, OTHER, BAD]}, format="messages")
    assert row == Example((), (USER, GOOD, OTHER, BAD))


def test_texts_stay_texts_unless_chat_makes_messages_of_them(tmp_path: Path) -> None:
    record = {"prompt": "q", "completion": "good"}
    assert rows(tmp_path, record, format="prompt_completion") == (Example("q", "good"),)
    assert rows(tmp_path, record, format="prompt_completion", chat=True) == (Example((USER,), (GOOD,)),)
    assert rows(tmp_path, record | {"prompt": [USER]}, format="prompt_completion") == (
        Example((USER,), (GOOD,)),
    )


def test_pair_is_chosen_before_rejected_with_its_margin(tmp_path: Path) -> None:
    record = {"prompt": "q", "chosen": "good", "rejected": "bad"}
    pair = rows(tmp_path, record, format="preference")
    assert [row.response for row in pair] == ["good", "bad"]
    assert scalars(pair, "margin") == [0.0, 0.0]
    assert scalars(rows(tmp_path, record | {"margin": 2}, format="preference"), "margin") == [2.0, 2.0]


def test_preference_conversations_share_their_common_prefix_as_prompt(tmp_path: Path) -> None:
    record = {"prompt": "ignored", "chosen": [USER, GOOD], "rejected": [USER, BAD]}
    assert rows(tmp_path, record, format="preference") == (
        Example((USER,), (GOOD,), {"margin": 0.0}),
        Example((USER,), (BAD,), {"margin": 0.0}),
    )
    # Equal answers leave each of the two something to train on.
    same = rows(tmp_path, record | {"rejected": [USER, GOOD]}, format="preference")
    assert [(row.prompt, row.response) for row in same] == [((USER,), (GOOD,))] * 2


def test_ranking_becomes_every_pair_of_unequal_scores_in_one_group(tmp_path: Path) -> None:
    record = {"prompt": "q", "answers": ["a", "b", "c"]}
    found = rows(tmp_path, record, format="preference")
    assert [row.response for row in found] == ["a", "b", "a", "c", "b", "c"]
    scored = rows(tmp_path, record | {"scores": [1.0, 3.0, 1.0]}, format="preference")
    assert [row.response for row in scored] == ["b", "a", "b", "c"]
    assert scalars(scored, "margin") == [2.0] * 4


def test_ranking_stays_one_group_with_its_scores_as_rewards(tmp_path: Path) -> None:
    record = {"prompt": "q", "answers": ["a", "b", "c"]}
    assert scalars(rows(tmp_path, record, format="ranked"), "reward") == [2.0, 1.0, 0.0]
    stated = rows(tmp_path, record | {"scores": [0.5, 0.5, -1]}, format="ranked")
    assert scalars(stated, "reward") == [0.5, 0.5, -1.0]
    pair = rows(tmp_path, {"prompt": "q", "chosen": "a", "rejected": "b"}, format="ranked")
    assert scalars(pair, "reward") == [1.0, 0.0]


def test_label_of_a_single_response_is_its_reward(tmp_path: Path) -> None:
    for label, reward in ((True, 1.0), (False, 0.0), (1, 1.0)):
        record = {"prompt": "q", "completion": "a", "label": label}
        assert scalars(rows(tmp_path, record, format="unpaired"), "reward") == [reward]


def test_steps_carry_their_labels_and_the_separator(tmp_path: Path) -> None:
    record = {"prompt": "q", "steps": ["one", "two"], "labels": [True, 0.25]}
    (row,) = rows(tmp_path, record, format="stepwise", separator=";")
    assert row == Example("q", (ProcessStep("one", 1.0, ";"), ProcessStep("two", 0.25, ";")))


def test_columns_can_be_named(tmp_path: Path) -> None:
    columns = {"prompt": "question", "chosen": "response_j", "rejected": "response_k"}
    record = {"question": "q", "response_j": "a", "response_k": "b"}
    assert len(rows(tmp_path, record, format="preference", columns=columns)) == 2


@pytest.mark.parametrize(
    ("format", "record", "message"),
    [
        ("messages", {"mesages": []}, "has no 'messages'; did you mean 'mesages'? add it, or name it"),
        ("messages", {"messages": [USER]}, "messages has no assistant message"),
        ("messages", {"messages": [{"role": "bot", "content": "x"}]}, "messages[0].role must be one of"),
        ("prompt_completion", {"prompt": " ", "completion": "a"}, "prompt must be a text or a list of"),
        ("prompt_completion", {"prompt": "q"}, "has no 'completion'"),
        ("prompt_completion", {"prompt": "q", "completion": None}, "has no 'completion'; it is null."),
        ("prompt_completion", {"prompt": "q", "completion": [GOOD]}, "prompt is a text and its response"),
        ("preference", {"prompt": "q"}, "has neither 'chosen' and 'rejected' nor 'answers'; name them"),
        ("preference", {"prompt": "q", "chosen": "a"}, "has no 'rejected'"),
        ("preference", {"prompt": "q", "answers": ["a"]}, "answers must be a list of two responses or more"),
        ("ranked", {"prompt": "q", "answers": ["a", "b"], "scores": [1]}, "scores must be a list of 2"),
        ("ranked", {"prompt": "q", "answers": ["a", "b"], "scores": [1, 1]}, "scores must not all be equal"),
        ("unpaired", {"prompt": "q", "completion": "a", "label": "good"}, "label must be true (good)"),
        ("stepwise", {"prompt": "q", "steps": [], "labels": []}, "steps must be a list of texts, not empty"),
        ("stepwise", {"prompt": "q", "steps": ["a"], "labels": [1, 0]}, "labels must be a list of 1 labels"),
        ("stepwise", {"prompt": "q", "steps": ["a"], "labels": [2]}, "labels must lie in [0, 1], got [2]"),
    ],
)
def test_invalid_row_is_named_with_file_line_column_and_remedy(
    tmp_path: Path, format: str, record: Any, message: str
) -> None:
    assert f"{tmp_path}/data.jsonl:1: {message}" in refusal(tmp_path, json.dumps(record), format=format)


@pytest.mark.parametrize(
    ("line", "message"),
    [("{'a': 1}", "not JSON (Expecting property name"), ("[1]", "must be an object, got list; write one")],
)
def test_line_that_is_not_an_object_is_reported_with_the_others(
    tmp_path: Path, line: str, message: str
) -> None:
    good = json.dumps({"messages": [USER, GOOD]})
    assert f"data.jsonl:2: {message}" in refusal(tmp_path, f"\n{line}\n{good}", format="messages")
    assert len(settings(tmp_path / "data.jsonl", format="messages").open()[1]) == 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"format": "messages", "columns": {"mesages": "x"}}, "got 'mesages'; did you mean 'messages'?"),
        ({"format": "messages", "separator": ";"}, "separator is not used by format 'messages'"),
        ({"format": "stepwise", "separator": ""}, "separator must not be empty"),
        ({"format": "pairs"}, "format must be 'messages', 'prompt_completion'"),
    ],
)
def test_keys_without_effect_are_refused(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(titanrl.ConfigError, match=r".") as error:
        settings(tmp_path / "data.jsonl", **keys)
    assert message in str(error.value)


def test_split_of_a_single_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(titanrl.ConfigError, match="split: a single file has no split, got 'test'"):
        settings(tmp_path / "data.jsonl", format="messages", split="test").open()


def test_parquet_and_saved_datasets_equal_json_lines(tmp_path: Path) -> None:
    import datasets

    records = [
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD], "margin": None},
        {"prompt": [OTHER], "chosen": [BAD], "rejected": [GOOD], "margin": 0.5},
    ]
    table = datasets.Dataset.from_list(records)
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, records)))
    table.to_parquet(tmp_path / "data.parquet")
    datasets.DatasetDict({"train": table, "test": table.select([1])}).save_to_disk(tmp_path / "saved")
    paths = [tmp_path / name for name in ("data.jsonl", "data.parquet", "saved")]
    opened = [settings(path, format="preference").open() for path in paths]
    assert [[each[i] for i in range(2)] for each in opened] == [[opened[0][i] for i in range(2)]] * 3
    assert opened[1].location(1).endswith("data.parquet row 1")
    assert opened[2].location(0).endswith("saved[train] row 0")
    assert len(settings(paths[2], format="preference", split="test").open()) == 1
    with pytest.raises(titanrl.ConfigError, match=r"has no 'valid'; splits: train, test"):
        settings(paths[2], format="preference", split="valid").open()


def test_missing_data_is_an_error_with_its_path(tmp_path: Path) -> None:
    for name in ("none.jsonl", "none.parquet", "none"):
        with pytest.raises(titanrl.ConfigError, match=name):
            settings(tmp_path / name, format="messages").open()


@pytest.mark.parametrize(
    ("format", "out_keys"),
    [("messages", ()), ("preference", ("margin",)), ("ranked", ("reward",)), ("stepwise", ("token_reward",))],
)
def test_formats_declare_their_columns(tmp_path: Path, format: str, out_keys: tuple[str, ...]) -> None:
    made = settings(tmp_path / "x.jsonl", format=format)
    assert made.out_keys == out_keys
    assert made.is_paired == (format == "preference")


def test_json_array_is_read_by_element(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps([{"messages": [USER, GOOD]}, {"messages": [OTHER, BAD]}], indent=1))
    examples = settings(path, format="messages").open()
    assert [examples[index][0].response[-1] for index in range(len(examples))] == [GOOD, BAD]
    assert examples.location(1) == f"{path} row 1"


def test_json_array_names_the_element_that_is_no_object(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps([{"messages": [USER, GOOD]}, 3]))
    with pytest.raises(ValueError, match="must be an object, got int; make each element an object"):
        settings(path, format="messages").open()[1]


@pytest.mark.parametrize(("text", "fault"), [("[]", "has no rows"), ('[{"a": 1}', "is not a JSON array")])
def test_json_array_without_records_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "data.json"
    path.write_text(text)
    with pytest.raises(titanrl.ConfigError, match=fault):
        settings(path, format="messages").open()
