"""Comparison of an implementation with a peer's: CPU time in one thread, alternating, and memory."""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

__all__ = ["compare", "live_tensors", "peak_bytes"]

ROUNDS = 9


def compare(
    benchmark: Any, ours: Callable[[], Any], peer: Callable[[], Any], at_least: float, *, against: str
) -> None:
    """Times both alternately and asserts that ``ours`` is at least ``at_least`` times faster.

    Args:
        against: name of the peer.
    """
    if benchmark.disabled:
        ours()
        return
    times: dict[str, list[float]] = {"ours": [], against: []}
    for _ in range(ROUNDS):
        for name, call, repeats in ((against, peer, 1), ("ours", ours, 5)):
            call()
            for _ in range(repeats):
                began = time.process_time()
                call()
                times[name].append(time.process_time() - began)
    median = {name: statistics.median(values) for name, values in times.items()}
    ratio = median[against] / median["ours"]
    benchmark.extra_info.update(
        seconds=times,
        ratio=ratio,
        threads=1,
        dtype="float32",
        torch=torch.__version__,
    )
    benchmark(ours)
    assert ratio >= at_least, benchmark.extra_info


def peak_bytes(call: Callable[[], Any], folder: Path) -> int:
    """Returns the peak of the memory that ``call`` allocated.

    Memory that was allocated before and is freed during the call is not subtracted, because a freed old
    gradient would hide a new one.

    Args:
        folder: for the profiler's trace.
    """
    with torch.profiler.profile(profile_memory=True) as profile:
        call()
    profile.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    changes = sorted(
        (event for event in events if event.get("name") == "[memory]"), key=lambda event: event["ts"]
    )
    held: dict[int, int] = {}
    total, peak = 0, 0
    for event in changes:
        address, change = event["args"]["Addr"], event["args"]["Bytes"]
        if change > 0:
            held[address] = change
            total += change
        else:
            total -= held.pop(address, 0)
        peak = max(peak, total)
    return peak


def live_tensors(*types: type[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the reachable tensors of exactly these types.

    Fake and wrapped tensors, which a compiler may have left, are excluded, because they have no storage.
    """
    gc.collect()
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return [each for each in gc.get_objects() if type(each) in types and not is_wrapped(each)]
