"""Timing in turns: ours against a peer's way of computing the same, by medians of CPU time, in one thread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["compare"]

ROUNDS = 9


def compare(benchmark: Any, ours: Callable[[], Any], peer: Callable[[], Any], at_least: float) -> None:
    """Times both in turns and asserts that ``ours`` is ``at_least`` so many times faster."""
    if benchmark.disabled:
        ours()
        return
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    for _ in range(ROUNDS):
        for name, call, repeats in (("peer", peer, 1), ("ours", ours, 5)):
            call()
            for _ in range(repeats):
                began = time.process_time()
                call()
                times[name].append(time.process_time() - began)
    median = {name: statistics.median(values) for name, values in times.items()}
    benchmark.extra_info.update(
        peer_ms=median["peer"] * 1e3, ours_ms=median["ours"] * 1e3, ratio=median["peer"] / median["ours"],
        peer_spread_ms=(max(times["peer"]) - min(times["peer"])) * 1e3, threads=1, dtype="float32",
        torch=torch.__version__,
    )  # fmt: skip
    benchmark(ours)
    assert median["peer"] / median["ours"] >= at_least, benchmark.extra_info
