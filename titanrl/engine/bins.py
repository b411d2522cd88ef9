"""Bin packing: as few bins as possible, or a fixed number of bins that are as even as possible."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heapify, heapreplace

__all__ = ["balance", "pack"]

MAX_EXCHANGES = 1000
"""Upper bound of the exchanges that even out bins; a few per bin are needed."""


def pack(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Returns the indices of the items in each bin, none of which holds more than ``capacity``.

    Best-fit decreasing: each item, largest first, goes where it leaves the least space. An item larger than
    ``capacity`` has a bin of its own. O(n log n).

    Args:
        sizes: of the items, >= 0, in any order.
        capacity: of a bin, >= 1, in the same unit.
    """
    bins: list[list[int]] = []
    spaces: list[tuple[int, int]] = []  # (free space, bin), ascending
    for item in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        size = sizes[item]
        slot = bisect_left(spaces, (size, -1))
        if slot < len(spaces):
            space, index = spaces.pop(slot)
            bins[index].append(item)
        else:
            space, index = capacity, len(bins)
            bins.append([item])
        if space > size:
            insort(spaces, (space - size, index))
    return bins


def balance(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Returns the indices of the items in each of ``count`` bins, whose sums are nearly equal.

    Items go into the emptiest bin, largest first. Then the fullest and the emptiest bin exchange two items,
    or move one, so that their sums come closest, for as long as that helps. Deterministic.

    Args:
        sizes: of the items, >= 0, in any order.
        count: number of bins, >= 1; bins stay empty where there are fewer items.
    """
    bins: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, index) for index in range(count)]
    heapify(heap)
    for item in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        load, index = heap[0]
        bins[index].append(item)
        heapreplace(heap, (load + sizes[item], index))
    loads = [0] * count
    for load, index in heap:
        loads[index] = load
    for _ in range(MAX_EXCHANGES):
        full, empty = loads.index(max(loads)), loads.index(min(loads))
        change = _exchange(sizes, bins[full], bins[empty], loads[full] - loads[empty])
        if not change:
            break
        loads[full] -= change
        loads[empty] += change
    return bins


def _exchange(sizes: Sequence[int], full: list[int], empty: list[int], difference: int) -> int:
    """Makes the best exchange and returns the decrease of the load of ``full``, 0 if no exchange helps."""
    candidates = sorted(full, key=sizes.__getitem__)
    keys = [sizes[item] for item in candidates]
    smallest, pair = difference, None
    for returned in (None, *empty):
        size = 0 if returned is None else sizes[returned]
        middle = bisect_left(keys, size + difference / 2)
        for index in (middle - 1, middle):
            if 0 <= index < len(keys):
                new_difference = abs(difference - 2 * (keys[index] - size))
                if new_difference < smallest:
                    smallest, pair = new_difference, (candidates[index], returned)
    if pair is None:
        return 0
    moved, returned = pair
    full.remove(moved)
    empty.append(moved)
    if returned is None:
        return sizes[moved]
    empty.remove(returned)
    full.append(returned)
    return sizes[moved] - sizes[returned]
