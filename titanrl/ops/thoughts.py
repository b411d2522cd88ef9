"""The part of a response that follows its thoughts."""

from __future__ import annotations

__all__ = ["CLOSE", "OPEN", "after_thoughts"]

OPEN, CLOSE = "<think>", "</think>"


def after_thoughts(response: str) -> str:
    """Returns what follows the last closed thoughts of a response, up to thoughts that never end.

    A response without ``</think>`` has closed no thoughts: the result is empty. The opening tag may be part
    of the prompt, so it is not required.
    """
    _, closed, rest = response.rpartition(CLOSE)
    return rest.partition(OPEN)[0] if closed else ""
