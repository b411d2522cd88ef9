"""The prompt feed: every prompt once an epoch, resumable from one number, nothing cut in silence."""

from __future__ import annotations

import datetime
import pickle

import numpy
import pytest

from titanrl.data.columns import json_columns
from titanrl.data.prompts import PromptLoader, prompt_id
from titanrl.errors import ConfigError
from titanrl.protocols import Prompt


class Numbers:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Prompt:
        return Prompt(messages=str(index), answer=str(index))


def feed(count: int, seed: int = 0, shuffle: bool = True) -> PromptLoader:
    return PromptLoader(
        Numbers(count), lambda prompt: [int(prompt.messages)], seed=seed, max_prompt_tokens=4, shuffle=shuffle
    )


def walk(prompts: PromptLoader, takes: int, size: int) -> list[str]:
    return [row.text for _ in range(takes) for row in prompts.next_batch(size, 1)]


def test_each_epoch_holds_every_prompt_once_in_an_order_of_its_own():
    seen = walk(feed(10), 5, 4)
    assert sorted(seen[:10]) == sorted(seen[10:]) == [str(i) for i in range(10)]
    assert seen[:10] != seen[10:]
    assert seen != walk(feed(10, seed=1), 5, 4)


@pytest.mark.parametrize("stop", range(1, 12))
def test_resumed_prompt_loader_continues_also_at_an_epochs_end_and_twice(stop):
    whole = walk(feed(6), 12, 2)
    first = feed(6)
    seen = walk(first, stop, 2)
    for _ in range(2):
        resumed = feed(6)
        resumed.loader.load_state_dict(first.loader.state_dict())
        first = resumed
    assert seen + walk(first, 12 - stop, 2) == whole


def test_rows_of_a_prompt_share_its_group_and_count_their_samples():
    rows = feed(3, shuffle=False).next_batch(2, 3, first_group=5)
    assert [(row.prompt_index, row.sample_index, row.text) for row in rows] == [
        (5, 0, "0"),
        (5, 1, "0"),
        (5, 2, "0"),
        (6, 0, "1"),
        (6, 1, "1"),
        (6, 2, "1"),
    ]


def test_prompt_that_the_template_refuses_is_named():
    def refuse(prompt: Prompt) -> list[int]:
        raise ValueError("is refused by the chat template: no.")

    prompts = PromptLoader(Numbers(3), refuse, seed=0, max_prompt_tokens=4, shuffle=False)
    with pytest.raises(ConfigError, match=r"^\[prompts\] prompt 0 is refused by the chat template: no\.$"):
        prompts.next_batch(1, 1)


def test_empty_source_and_overlong_prompt_are_refused_with_their_table():
    with pytest.raises(ConfigError, match=r"\[prompts\] has no prompts"):
        feed(0)
    long = PromptLoader(Numbers(1), lambda _: [0] * 5, seed=0, max_prompt_tokens=4)
    with pytest.raises(ConfigError, match=r"prompt 0 has 5 tokens, more than the 4"):
        long.next_batch(1, 1)


def test_identity_of_a_prompt_is_its_source_and_messages_alone() -> None:
    """The value is that of b2sum -l 64; it must not change, or saved statistics of prompts are lost."""
    chat = ({"role": "user", "content": "1 + 1? \ud800"},)
    assert prompt_id("jsonl", Prompt("1 + 1?")) == 5126246140783233145
    same = prompt_id("jsonl", Prompt("1 + 1?", answer="2", columns={"level": 1}))
    assert same == prompt_id("jsonl", Prompt("1 + 1?"))
    others = [
        prompt_id("other", Prompt("1 + 1?")),
        prompt_id("jsonl", Prompt("1 + 2?")),
        prompt_id("jsonl", Prompt(chat)),
        prompt_id("jsonl", Prompt("1 + 1?", id="7")),
        prompt_id("jsonl", Prompt("x", id="8")),
    ]
    assert len({same, *others}) == 6
    assert all(0 <= each < 2**63 for each in others)
    assert prompt_id("jsonl", Prompt("edited", id="7")) == others[3]


class Rows:
    """Duplicated prompts with columns, in a given order."""

    def __init__(self, *prompts: Prompt) -> None:
        self.prompts = prompts

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: int) -> Prompt:
        return self.prompts[index]


def test_identity_follows_the_prompt_through_every_order_and_duplicates_share_it() -> None:
    prompts = [Prompt("a"), Prompt("b"), Prompt("a", answer="other"), Prompt("c", source="mixed")]
    ids: list[dict[str, set[int]]] = []
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        rows = Rows(*(prompts[i] for i in order))
        loader = PromptLoader(rows, lambda _: [1], seed=order[0], max_prompt_tokens=4, name="jsonl")
        found: dict[str, set[int]] = {}
        for request in loader.next_batch(4, 2):
            found.setdefault(request.text, set()).add(request.prompt_id)
            assert request.source == ("mixed" if request.text == "c" else "jsonl")
        ids.append(found)
    assert ids[0] == ids[1] == {text: {next(iter(values))} for text, values in ids[0].items()}


def test_columns_of_the_row_reach_every_request_as_json_values() -> None:
    row = {
        "level": numpy.int64(3),
        "tests": ("a", {"in": b"x"}),
        "day": datetime.date(2026, 1, 2),
        "none": None,
        "vector": numpy.array([1.5, 2.0]),
    }
    loader = PromptLoader(Rows(Prompt("q", columns=row)), lambda _: [1], seed=0, max_prompt_tokens=4)
    expected = {
        "level": 3,
        "tests": ["a", {"in": "b'x'"}],
        "day": "2026-01-02",
        "none": None,
        "vector": [1.5, 2.0],
    }
    requests = loader.next_batch(1, 2)
    assert [request.columns for request in requests] == [expected, expected]
    assert pickle.loads(pickle.dumps(requests)) == requests
    assert json_columns(expected) == expected


def test_columns_that_the_source_declares_are_extras_of_the_request() -> None:
    source = Rows(Prompt("q", columns={"level": 2, "other": 1}))
    loader = PromptLoader(source, lambda _: [1], seed=0, max_prompt_tokens=4, out_keys=("level",))
    assert loader.next_batch(1, 1)[0].extras == {"level": 2}
    bare = PromptLoader(Rows(Prompt("q")), lambda _: [1], seed=0, max_prompt_tokens=4, out_keys=("level",))
    with pytest.raises(ConfigError, match=r"\[prompts\] prompt 0 has no column 'level'.*Columns: none"):
        bare.next_batch(1, 1)
