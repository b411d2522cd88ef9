"""Ours against a peer's way of computing the same: CPU time in one thread, in turns; and memory."""

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
    """Times both in turns and asserts that ``ours`` is ``at_least`` so many times faster.

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
    """Returns the most memory that ``call`` allocated and still held, at one time.

    What it frees of what was there before counts for nothing: an old gradient would hide as much of the new.

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
    """Returns the tensors of these very types that Python can reach.

    None that are fake or wrapped, which a compiler may have left: they have no storage.
    """
    gc.collect()
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return [each for each in gc.get_objects() if type(each) in types and not is_wrapped(each)]
