"""Speed and memory of an update whose groups share their prompt against one of separate rows; packing itself.

135M parameters, 4 groups of 8 answers, all threads, in the precision the CPU is fast in; both take turns.
Run: ``make bench PYTEST_ARGS=benchmarks/test_bench_packing.py``; it takes minutes.
"""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import titanrl
from benchmarks.timing import peak_bytes
from titanrl.config.engine_tables import Optimizer, Training
from titanrl.engine import Engine, EngineConfig, set_threads
from titanrl.objective import Objective
from titanrl.ops.bins import balance, pack

MODEL = Path(__file__).parents[1] / "models" / "smollm2-135m"
GROUPS, ANSWERS, ROUNDS = 4, 8, 3


def rows(prompt: int, answer: int, *, shared: bool) -> TensorDict:
    """Returns groups that begin with one prompt each; not ``shared``: the same rows as groups of one."""
    generator = torch.Generator().manual_seed(0)
    count, length = GROUPS * ANSWERS, prompt + answer
    raw = torch.randint(0, 49_000, (count, length), generator=generator)
    raw[:, :prompt] = raw[::ANSWERS, :prompt].repeat_interleave(ANSWERS, 0)
    mask = torch.zeros(count, length - 1, dtype=torch.bool)
    mask[:, prompt - 1 :] = True
    group = torch.arange(GROUPS).repeat_interleave(ANSWERS)
    return TensorDict(
        {
            "input_ids": raw[:, :-1],
            "labels": raw[:, 1:],
            "loss_mask": mask,
            "group_id": group if shared else torch.arange(count),
            "advantage": torch.randn(count, 1, generator=generator) * mask,
            "loss_weight": mask.float() / mask.sum(),
        },
        batch_size=[count],
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not MODEL.is_dir(), reason="needs `titanrl model get smollm2-135m`")
@pytest.mark.parametrize(("prompt", "answer", "at_least"), [(256, 64, 2.3), (64, 16, 2.0)])
def test_shared_prompts(prompt: int, answer: int, at_least: float, benchmark: Any, tmp_path: Path) -> None:
    dtype = "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"
    set_threads()
    training = Training(seq_len=512, max_tokens_per_microbatch=20_000, mixed_precision_param=dtype)
    engine = Engine(EngineConfig(model=str(MODEL), training=training, optimizer=Optimizer(lr=1e-6)))
    objective = Objective(loss=titanrl.build("loss", {"name": "ppo_clip"}), on_policy=True)
    batches = {name: rows(prompt, answer, shared=name == "shared") for name in ("shared", "separate")}

    def update(name: str) -> float:
        return engine.measure(batches[name], objective, (0.0, 0.0))["loss/total"][0]

    assert update("shared") == pytest.approx(update("separate"), abs=1e-5 if dtype == "float32" else 2e-3)
    if benchmark.disabled:
        return
    times: dict[str, list[float]] = {name: [] for name in batches}
    for _ in range(ROUNDS + 1):
        for name, spent in times.items():
            began = time.perf_counter()
            engine.update(batches[name], objective, (0.0, 0.0))
            spent.append(time.perf_counter() - began)
    ratio = statistics.median(b / a for a, b in list(zip(*times.values(), strict=True))[1:])
    memory = {
        name: peak_bytes(lambda: engine.update(batches[name], objective, (0.0, 0.0)), tmp_path) / 2**20  # noqa: B023
        for name in batches
    }
    benchmark.extra_info.update(
        seconds=times, ratio=ratio, memory_mib=memory, dtype=dtype, threads=torch.get_num_threads(),
        torch=torch.__version__,
    )  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)
    assert ratio >= at_least, benchmark.extra_info


def test_packing_takes_milliseconds(benchmark: Any) -> None:
    rng = random.Random(0)
    sizes = [max(1, min(4096, int(rng.lognormvariate(5.5, 0.8)))) for _ in range(4096)]
    bins = pack(sizes, 4096)
    assert 1 - sum(sizes) / (len(bins) * 4096) <= 0.008
    loads = [sum(sizes[item] for item in chosen) for chosen in balance(sizes, 64)]
    assert max(loads) / (sum(loads) / 64) - 1 <= 0.001
    if benchmark.disabled:
        return
    times = []
    for _ in range(21):
        began = time.process_time()
        pack(sizes, 4096)
        times.append(time.process_time() - began)
    benchmark.extra_info.update(ms=statistics.median(times) * 1e3, rows=len(sizes), bins=len(bins))
    benchmark(lambda: pack(sizes, 4096))
    assert statistics.median(times) < 5e-3, benchmark.extra_info
