"""The prompt feed: every prompt once an epoch, resumable from one number, nothing cut in silence."""

from __future__ import annotations

import pytest

from titanrl.data.prompts import PromptLoader
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
def test_resumed_feed_goes_on_where_it_stopped_also_at_an_epochs_end_and_twice(stop):
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
    assert [(row.group, row.sample, row.text) for row in rows] == [
        (5, 0, "0"), (5, 1, "0"), (5, 2, "0"), (6, 0, "1"), (6, 1, "1"), (6, 2, "1"),
    ]  # fmt: skip


def test_prompt_that_the_template_refuses_is_named():
    def refuse(prompt: Prompt) -> list[int]:
        raise ValueError("is refused by the chat template: no.")

    prompts = PromptLoader(Numbers(3), refuse, seed=0, max_prompt_tokens=4, shuffle=False)
    with pytest.raises(ConfigError, match=r"^\[prompts\] prompt 0 is refused by the chat template: no\.$"):
        prompts.next_batch(1, 1)


def test_empty_source_and_overlong_prompt_are_refused_with_their_table():
    with pytest.raises(ConfigError, match=r"\[prompts\] holds no prompt"):
        feed(0)
    long = PromptLoader(Numbers(1), lambda _: [0] * 5, seed=0, max_prompt_tokens=4)
    with pytest.raises(ConfigError, match=r"prompt 0 has 5 tokens, more than the 4"):
        long.next_batch(1, 1)
