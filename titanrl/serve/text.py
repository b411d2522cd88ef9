"""Texts of responses: complete, or piece by piece while they are sampled, up to the first stop text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

__all__ = ["TextStream", "cut_at_stop"]

Decode = Callable[[Sequence[int]], str]


def cut_at_stop(decode: Decode, ids: Sequence[int], stops: Sequence[str]) -> tuple[str, int | None]:
    """Return the text before the first stop text, and the number of tokens up to that text's end.

    Args:
        decode: token ids -> text.
        ids: token ids of the response.
        stops: texts that end a response.

    Returns:
        The text, and None for the number if there is no stop text.
    """
    text = decode(ids)
    starts = [text.index(each) for each in stops if each in text]
    if not starts:
        return text, None

    def contains_stop(count: int) -> bool:
        return any(each in decode(ids[:count]) for each in stops)

    count = bisect_left(range(len(ids) + 1), True, key=contains_stop)
    return text[: min(starts)], count


class TextStream:
    """The text of a response that is being sampled.

    Args:
        decode: token ids -> text.
        stops: texts that end the response.
    """

    def __init__(self, decode: Decode, stops: Sequence[str] = ()) -> None:
        self._decode, self._stops = decode, stops
        self._num_held = max(map(len, stops), default=1) - 1
        """Characters at the end that may be the beginning of a stop text."""
        self._ids: list[int] = []
        self._start = self._end = 0
        """The window of ids whose text is known: decoding it again shows what the next ids add."""
        self._text = ""
        self._num_sent = 0

    def add(self, ids: Sequence[int]) -> bool:
        """Take new tokens in; return whether the text contains a stop text now."""
        self._ids += ids
        before = self._decode(self._ids[self._start : self._end])
        now = self._decode(self._ids[self._start :])
        # A character of several bytes may be incomplete; it is decoded with the tokens that follow.
        if len(now) <= len(before) or now.endswith("\ufffd"):
            return False
        searched = max(len(self._text) - self._num_held, 0)
        self._text += now[len(before) :]
        self._start, self._end = self._end, len(self._ids)
        return any(self._text.find(stop, searched) >= 0 for stop in self._stops)

    def take(self) -> str:
        """Return the text that is new since the last call and cannot be part of a stop text."""
        return self._take(self._text[: max(len(self._text) - self._num_held, 0)])

    def finish(self, text: str) -> str:
        """Return the rest of the response.

        Args:
            text: the complete text, as ``cut_at_stop`` returns it.
        """
        # Decoding all tokens together may differ in earlier characters, which are sent already.
        return self._take(text if text.startswith(self._text[: self._num_sent]) else "")

    def _take(self, text: str) -> str:
        new = text[self._num_sent :]
        self._num_sent = max(self._num_sent, len(text))
        return new
