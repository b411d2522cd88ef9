"""Items of known size into bins: as few bins as possible, or a fixed number of bins as even as possible."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heapify, heapreplace

__all__ = ["balance", "pack"]

MAX_EXCHANGES = 1000
"""Bound of the exchanges that even out bins; a few per bin are needed."""


def pack(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Returns the numbers of the items in each bin, none of which holds more than ``capacity``.

    Best-fit decreasing: each item, largest first, goes where it leaves the least room. An item larger than
    ``capacity`` has a bin of its own. O(n log n).

    Args:
        sizes: >= 0, in any order. capacity: >= 1, in the same unit.
    """
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (what is left, bin), ascending
    for item in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        size = sizes[item]
        at = bisect_left(room, (size, -1))
        if at < len(room):
            left, number = room.pop(at)
            bins[number].append(item)
        else:
            left, number = capacity, len(bins)
            bins.append([item])
        if left > size:
            insort(room, (left - size, number))
    return bins


def balance(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Returns the numbers of the items in each of ``count`` bins, whose sums are as equal as can be found.

    Largest first into the emptiest bin; then the fullest and the emptiest bin exchange the two items, or
    move the one, that bring them closest, for as long as that helps. The same input gives the same answer.

    Args:
        sizes: >= 0, in any order. count: >= 1; bins stay empty where there are fewer items.
    """
    bins: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    heapify(heap)
    for item in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        load, number = heap[0]
        bins[number].append(item)
        heapreplace(heap, (load + sizes[item], number))
    loads = [0] * count
    for load, number in heap:
        loads[number] = load
    for _ in range(MAX_EXCHANGES):
        full, empty = loads.index(max(loads)), loads.index(min(loads))
        change = _exchange(sizes, bins[full], bins[empty], loads[full] - loads[empty])
        if not change:
            break
        loads[full] -= change
        loads[empty] += change
    return bins


def _exchange(sizes: Sequence[int], full: list[int], empty: list[int], gap: int) -> int:
    """Makes the best exchange there is; returns by how much ``full`` shrank, 0 if none helps."""
    given = sorted(full, key=sizes.__getitem__)
    keys = [sizes[item] for item in given]
    best, pair = gap, None
    for taken in (None, *empty):
        size = 0 if taken is None else sizes[taken]
        at = bisect_left(keys, size + gap / 2)
        for index in (at - 1, at):
            if 0 <= index < len(keys):
                left = abs(gap - 2 * (keys[index] - size))
                if left < best:
                    best, pair = left, (given[index], taken)
    if pair is None:
        return 0
    gone, taken = pair
    full.remove(gone)
    empty.append(gone)
    if taken is None:
        return sizes[gone]
    empty.remove(taken)
    full.append(taken)
    return sizes[gone] - sizes[taken]
