"""Texts of responses while they are sampled: nothing of a stop text, and the complete text in the end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from titanrl.data.tokenizer import ChatTokenizer
from titanrl.models import tiny
from titanrl.serve.text import TextStream, cut_at_stop


def letters(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def utf8(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


def streamed(decode: object, ids: Sequence[int], stops: Sequence[str]) -> tuple[list[str], str]:
    """Return the pieces that a client gets, and the complete text."""
    stream, pieces = TextStream(decode, stops), []  # type: ignore[arg-type]
    used = 0
    for token in ids:
        used += 1
        if stream.add([token]):
            break
        pieces.append(stream.take())
    text, _ = cut_at_stop(decode, ids[:used], stops)  # type: ignore[arg-type]
    pieces.append(stream.finish(text))
    return pieces, text


@pytest.mark.parametrize(
    ("stops", "text", "count"),
    [
        (("d", "cd"), "ab", 4),
        (("bc",), "a", 3),
        (("x",), "abcdef", None),
        (("abcdef",), "", 6),
        ((), "abcdef", None),
    ],
)
def test_response_ends_before_the_first_stop_text(stops: Sequence[str], text: str, count: int | None) -> None:
    ids = [ord(letter) for letter in "abcdef"]
    assert cut_at_stop(letters, ids, stops) == (text, count)
    pieces, complete = streamed(letters, ids, stops)
    assert "".join(pieces) == complete == text


def test_beginning_of_a_stop_text_is_held_back_until_it_is_none() -> None:
    pieces, _ = streamed(letters, [ord(letter) for letter in "abxabc"], ["abc"])
    assert pieces == ["", "", "a", "b", "x", ""]


def test_incomplete_characters_are_held_back() -> None:
    pieces, text = streamed(utf8, "é😀!".encode(), [])
    assert pieces == ["", "é", "", "", "", "😀", "!", ""]
    assert text == "é😀!"
    pieces, text = streamed(utf8, "a😀".encode()[:3], [])
    assert "".join(pieces) == text == "a\ufffd"


def test_pieces_make_the_complete_text(tmp_path: Path) -> None:
    tokenizer = ChatTokenizer(tiny.create(tmp_path / "model"))
    numbers = random.Random(0)
    size = len(tokenizer.tokenizer)
    for _ in range(100):
        ids = [numbers.randrange(size) for _ in range(numbers.randrange(1, 40))]
        stops = [numbers.choice(["e", "ab", "\ufffd", " th"])] if numbers.random() < 0.5 else []
        pieces, text = streamed(tokenizer.decode, ids, stops)
        assert "".join(pieces) == text
