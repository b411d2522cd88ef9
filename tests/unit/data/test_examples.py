"""The data feed: every example once an epoch, resumable from one number, nothing cut in silence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from titanrl.data.collate import collate_examples
from titanrl.data.encode import TokenizedExample
from titanrl.data.examples import ExampleLoader
from titanrl.errors import ConfigError
from titanrl.protocols import Example
from titanrl.protocols.batch import KEYS, Key


@dataclass(frozen=True)
class Texts:
    """Examples of one text each; its tokens are its characters."""

    texts: tuple[str, ...]
    on_overlong: str = "error"
    out_keys: tuple[str, ...] = ()
    is_paired: bool = False

    def open(self) -> Texts:
        return self

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[Example, ...]:
        if self.texts[index] == "broken":
            raise ValueError("is broken.")
        return (Example("p", self.texts[index]),)

    def location(self, index: int) -> str:
        return f"texts:{index + 1}"


def encode(row: Example) -> TokenizedExample:
    assert isinstance(row.response, str)
    assert row.response != "unread"
    if row.response == "bad":
        raise ValueError("is bad.")
    ids = [ord(letter) for letter in f"p{row.response}"]
    return TokenizedExample(ids, [False] + [True] * (len(ids) - 1), {}, {})


def feed(*texts: str, seed: int = 0, **keys: Any) -> ExampleLoader:
    return ExampleLoader(Texts(texts, **keys), encode, seed=seed, seq_len=4)  # type: ignore[arg-type]


def walk(data: ExampleLoader, takes: int, size: int) -> list[str]:
    groups = [group for _ in range(takes) for group in data.next_batch(size).groups]
    return ["".join(map(chr, row.ids[1:])) for group in groups for row in group]


def test_each_epoch_holds_every_example_once_in_an_order_of_its_own() -> None:
    data = feed(*"abcdefghij")
    seen = walk(data, 5, 4)
    assert sorted(seen[:10]) == sorted(seen[10:]) == list("abcdefghij")
    assert seen[:10] != seen[10:]
    assert seen != walk(feed(*"abcdefghij", seed=1), 5, 4)
    assert data.epoch == 2.0


@pytest.mark.parametrize("stop", range(1, 9))
def test_resumed_loader_continues_after_dropped_examples(stop: int) -> None:
    texts = ("a", "b", "toolong", "c", "d")
    whole = walk(feed(*texts, on_overlong="drop"), 9, 3)
    first = feed(*texts, on_overlong="drop")
    seen = walk(first, stop, 3)
    for _ in range(2):
        resumed = feed(*texts, on_overlong="drop")
        resumed.loader.load_state_dict(first.loader.state_dict())
        first = resumed
    assert seen + walk(first, 9 - stop, 3) == whole


def test_overlong_examples_are_refused_before_training_and_counted() -> None:
    data = feed("abc", "abcd", *["abcde"] * 11, "bad")
    with pytest.raises(ConfigError) as error:
        data.check()
    text = str(error.value)
    assert text.startswith(
        "texts:2: [data] has a row of 5 tokens, more than [training] seq_len = 4; raise it"
    )
    assert "drop'. (12 rows; also 3, 4, ...)" in text, "equal faults fold"
    assert text.endswith("texts:14: is bad.")
    feed("abc", "abcd").check(1)


@pytest.mark.parametrize("keys", [{}, {"on_overlong": "drop"}])
def test_check_reads_every_example_before_training(keys: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"^texts:3: is broken\.$"):
        feed("a", "unread", "broken", **keys).check(1)


def test_scan_counts_examples_and_tokens() -> None:
    found = feed("a", "toolong", "broken", "bc").scan()
    assert [place for place, _ in found.problems] == ["texts:2", "texts:3"]
    assert (found.dropped, found.row_tokens, found.loss_tokens) == (0, [2, 8, 3], 10)
    assert feed("a", "toolong", on_overlong="drop").scan()[:2] == ([], 1)


def test_example_that_cannot_be_tokenized_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^texts:2: is bad\.$"):
        feed("a", "bad").check()
    for read in (lambda data: data.next_batch(1), lambda data: list(data.iterate_once())):
        with pytest.raises(ConfigError, match=r"^texts:1: is bad\.$"):
            read(feed("bad", on_overlong="drop"))


def test_on_overlong_drop_drops_and_counts_examples() -> None:
    data = feed("a", "abcd", "b", on_overlong="drop")
    data.check()
    groups, dropped = data.next_batch(4)
    assert len(groups) == 4
    assert dropped in (1, 2), "one for each epoch that was begun before the fourth was found"
    assert [len(group[0].ids) for group in groups] == [2] * 4


def test_dataset_of_only_overlong_examples_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"has a row of 5 tokens, more than \[training\] seq_len = 4"):
        feed("abcd", "efgh", on_overlong="drop").next_batch(1)


@pytest.mark.parametrize("seed", range(8))
def test_overlong_examples_across_an_epoch_boundary_are_skipped(seed: int) -> None:
    data = feed("a", "abcd", on_overlong="drop", seed=seed)
    assert len(data.next_batch(9).groups) == 9


def test_held_out_examples_are_the_first_ones_and_never_repeated() -> None:
    data = feed("a", "abcd", "b", "c", on_overlong="drop")
    for _ in range(2):
        assert [chr(group[0].ids[1]) for group in data.iterate_once(2)] == ["a", "b"]
    assert len(list(data.iterate_once(9))) == 3


def test_empty_source_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\[data\] has no examples"):
        feed()


def test_batch_is_label_aligned_and_right_padded() -> None:
    groups = [
        [
            TokenizedExample([5, 6, 7], [False, False, True], {"margin": 0.5}, {}),
            TokenizedExample([5, 8], [False, True], {"margin": 0.5}, {}),
        ],
        [TokenizedExample([9, 10, 11, 12], [False, True, False, True], {"margin": 0.0}, {})],
    ]
    batch = collate_examples(groups, out_keys=("margin",), first_group=3)
    assert batch["input_ids"].tolist() == [[5, 6, 0], [5, 0, 0], [9, 10, 11]]
    assert batch["labels"].tolist() == [[6, 7, 0], [8, 0, 0], [10, 11, 12]]
    assert batch["loss_mask"].tolist() == [[False, True, False], [True, False, False], [True, False, True]]
    assert batch["group_id"].tolist() == [3, 3, 4]
    assert len(set(batch["row_id"].tolist())) == 3
    assert batch["margin"].tolist() == [0.5, 0.5, 0.0]
    assert batch["margin"].dtype == torch.float32


def test_scalar_gets_the_dtype_of_its_registered_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KEYS, "level", Key("[N]", "int64", "sample", "difficulty of the example"))
    row = TokenizedExample([5, 6], [False, True], {"level": 3.0}, {})
    assert collate_examples([[row]], out_keys=("level",))["level"].dtype == torch.int64


def test_step_labels_are_aligned_with_their_mask() -> None:
    row = TokenizedExample([5, 6, 7, 8], [False, False, True, True], {}, {2: 1.0, 3: 0.25})
    batch = collate_examples([[row]], out_keys=("token_reward",))
    assert batch["token_reward"].tolist() == [[0.0, 1.0, 0.25]]
    assert batch["loss_mask"].tolist() == [[False, True, True]]
