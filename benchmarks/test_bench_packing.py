"""Speed and memory of an update with shared prefixes relative to separate rows; speed of packing.

135M parameters, in the precision that is fastest on the CPU; CPU time in one thread; both alternate.
Run: ``make bench ONLY=packing``; it takes minutes.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tensordict import TensorDict

import titanrl
from benchmarks.smollm2 import MODEL, fast_dtype, needs_model
from benchmarks.timing import peak_bytes
from titanrl.algorithm.objective import Objective
from titanrl.config.engine_tables import Optimizer, Training
from titanrl.engine import Engine, EngineConfig
from titanrl.engine.bins import balance, pack
from titanrl.engine.packing import assign_micro_batches

GROUPS, SAMPLES = 4, 8
TURNS, TURN = 4, 32
BUDGET = 4096


def batch_of(raw: torch.Tensor, mask: torch.Tensor, group: torch.Tensor) -> TensorDict:
    """Returns the batch of rows [N, L + 1] of tokens with the loss mask ``mask`` [N, L]."""
    generator = torch.Generator().manual_seed(1)
    return TensorDict(
        {
            "input_ids": raw[:, :-1],
            "labels": raw[:, 1:],
            "loss_mask": mask,
            "group_id": group,
            "advantage": torch.randn(len(raw), 1, generator=generator) * mask,
            "loss_weight": mask.float() / mask.sum(),
        },
        batch_size=[len(raw)],
    )


def responses(prompt: int, response: int) -> TensorDict:
    """Returns groups of responses of equal length, one prompt per group."""
    generator = torch.Generator().manual_seed(0)
    count, length = GROUPS * SAMPLES, prompt + response
    raw = torch.randint(0, 49_000, (count, length), generator=generator)
    raw[:, :prompt] = raw[::SAMPLES, :prompt].repeat_interleave(SAMPLES, 0)
    mask = (torch.arange(length - 1) >= prompt - 1).repeat(count, 1)
    return batch_of(raw, mask, torch.arange(GROUPS).repeat_interleave(SAMPLES))


def turns(prompt: int) -> TensorDict:
    """Returns groups of two conversations, with one row per turn that ends with the turn."""
    generator = torch.Generator().manual_seed(0)
    count, length = GROUPS * 2 * TURNS, prompt + TURNS * TURN
    raw = torch.randint(0, 49_000, (count, length), generator=generator)
    raw = raw[::TURNS].repeat_interleave(TURNS, 0)
    raw[:, :prompt] = raw[:: 2 * TURNS, :prompt].repeat_interleave(2 * TURNS, 0)
    position, begin = torch.arange(length - 1), prompt + TURN * (torch.arange(count) % TURNS)[:, None] - 1
    mask = (position >= begin) & (position < begin + TURN)
    return batch_of(raw, mask, torch.arange(GROUPS).repeat_interleave(2 * TURNS))


class Case(NamedTuple):
    rows: Callable[[], TensorDict]
    faster: float
    """Required speed relative to separate rows."""
    memory: float
    """Maximum memory relative to separate rows."""
    rounds: int


CASES = {
    "256 + 64": Case(lambda: responses(256, 64), faster=2.3, memory=1 / 3, rounds=3),
    "64 + 16": Case(lambda: responses(64, 16), faster=2.0, memory=0.45, rounds=7),
    "turns": Case(lambda: turns(64), faster=2.3, memory=0.4, rounds=5),
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@needs_model
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_shared_prefixes(case: Case, benchmark: Any, tmp_path: Path, one_thread: None) -> None:
    dtype = fast_dtype()
    training = Training(seq_len=512, max_tokens_per_microbatch=20_000, mixed_precision_param=dtype)
    engine = Engine(EngineConfig(model=str(MODEL), training=training, optimizer=Optimizer(lr=1e-6)))
    objective = Objective(loss=titanrl.build("loss", {"name": "ppo_clip"}), on_policy=True)
    shared = case.rows()
    separate = shared.clone()
    separate["group_id"] = torch.arange(len(separate))
    batches = {"shared": shared, "separate": separate}

    loss = {name: engine.measure(rows, objective, (0.0, 0.0)) for name, rows in batches.items()}
    tolerance = 1e-5 if dtype == "float32" else 2e-3
    for metric in ("loss/total", "loss/entropy"):
        wanted, count = loss["separate"][metric]
        assert loss["shared"][metric][0] == pytest.approx(wanted, rel=tolerance, abs=tolerance * count)
    if benchmark.disabled:
        return
    times: dict[str, list[float]] = {name: [] for name in batches}
    for _ in range(case.rounds + 1):
        for name, spent in times.items():
            began = time.process_time()
            engine.update(batches[name], objective, (0.0, 0.0))
            spent.append(time.process_time() - began)
    ratio = statistics.median(b / a for a, b in list(zip(*times.values(), strict=True))[1:])
    memory = {
        name: peak_bytes(lambda: engine.update(batches[name], objective, (0.0, 0.0)), tmp_path) / 2**20  # noqa: B023
        for name in batches
    }
    benchmark.extra_info.update(
        seconds=times,
        ratio=ratio,
        memory_mib=memory,
        dtype=dtype,
        threads=torch.get_num_threads(),
        tokens={name: sums["update/computed_tokens"][0] for name, sums in loss.items()},
        torch=torch.__version__,
    )
    benchmark.pedantic(lambda: None, rounds=1)
    assert ratio >= case.faster, benchmark.extra_info
    assert memory["shared"] <= case.memory * memory["separate"], benchmark.extra_info


def lognormal(seed: int) -> list[int]:
    """Returns 4,096 lengths distributed like those of responses."""
    rng = random.Random(seed)
    return [max(1, min(BUDGET, int(rng.lognormvariate(5.5, 0.8)))) for _ in range(4096)]


def first_fit_decreasing(sizes: list[int]) -> int:
    """Returns the number of bins of first-fit decreasing."""
    room: list[int] = []
    for size in sorted(sizes, reverse=True):
        index = next((index for index, left in enumerate(room) if left >= size), None)
        if index is None:
            room.append(BUDGET - size)
        else:
            room[index] -= size
    return len(room)


@pytest.mark.parametrize("seed", range(4))
def test_packing_takes_milliseconds(seed: int, benchmark: Any) -> None:
    sizes = lognormal(seed)
    bins = pack(sizes, BUDGET)
    assert len(bins) <= first_fit_decreasing(sizes)
    assert 1 - sum(sizes) / (len(bins) * BUDGET) <= 0.008
    loads = [sum(sizes[item] for item in chosen) for chosen in balance(sizes, 64)]
    assert max(loads) / (sum(loads) / 64) - 1 <= 0.001
    if benchmark.disabled:
        return
    ways = {"ours": lambda: pack(sizes, BUDGET), "first fit": lambda: first_fit_decreasing(sizes)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(9):
        for name, way in ways.items():
            began = time.process_time()
            way()
            times[name].append(time.process_time() - began)
    median = {name: statistics.median(spent) for name, spent in times.items()}
    ratio = median["first fit"] / median["ours"]
    benchmark.extra_info.update(seconds=times, ratio=ratio, threads=1, rows=len(sizes), bins=len(bins))
    benchmark(ways["ours"])
    assert median["ours"] < 5e-3, benchmark.extra_info
    assert ratio >= 3, benchmark.extra_info


def test_packing_finds_shared_prefixes(benchmark: Any, one_thread: None) -> None:
    """4,096 rows of up to 1,024 tokens in groups of 8, from tokens to micro-batches."""
    length = torch.tensor(lognormal(0)).clamp(max=1023)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 49_000, (4096, 1024), generator=generator)
    ids[:, :128] = ids[::8, :128].repeat_interleave(8, 0)
    mask = torch.arange(1024) < length[:, None]
    rows = TensorDict(
        {"input_ids": ids, "loss_mask": mask, "group_id": torch.arange(4096) // 8}, batch_size=[4096]
    )
    assert sorted(torch.cat(assign_micro_batches(rows, BUDGET)).tolist()) == list(range(4096))
    if benchmark.disabled:
        return
    times = []
    for _ in range(9):
        began = time.process_time()
        assign_micro_batches(rows, BUDGET)
        times.append(time.process_time() - began)
    benchmark.extra_info.update(ms=statistics.median(times) * 1e3, rows=len(rows))
    benchmark(lambda: assign_micro_batches(rows, BUDGET))
    assert statistics.median(times) < 50e-3, benchmark.extra_info
