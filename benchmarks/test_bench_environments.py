"""Speed of sampling over several turns relative to one turn, by vLLM in the trainer's process.

64 rollouts of 4 turns of 32 tokens against 64 responses of 128 tokens; 135M parameters, in one thread, in the
precision that is fastest on the CPU; CPU time, both alternate. The environment itself does nothing.
Run: ``make bench ONLY=environments``; it takes minutes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.smollm2 import MODEL, needs_model, needs_vllm, trainer
from titanrl.components.samplers.vllm import VLLM
from titanrl.protocols import Ask, Environment, RolloutRequest, Sampling, Trajectory
from titanrl.rollout.environments.episode import Limits
from titanrl.rollout.environments.runner import EnvironmentRunner

TURNS, TURN, ROUNDS = 4, 32, 3
BETWEEN = (2, 198, 1, 4093, 198)
"""Tokens that the environment adds after each turn."""
KEPT = 0.85
"""Required share of the tokens per second of one turn."""

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(1800), needs_model, needs_vllm]


class Turns(Environment):
    """Asks several times and adds a few tokens in between."""

    async def run(self, row: RolloutRequest, ask: Ask) -> Trajectory:
        ids = list(row.prompt_ids)
        for _ in range(TURNS):
            ids += [*(await ask(ids, Sampling(max_tokens=TURN))).ids, *BETWEEN]
        return Trajectory()


def seconds(call: Callable[[], Any]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def test_turns_keep_the_speed_of_sampling(benchmark: Any) -> None:
    from transformers import AutoTokenizer

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    engine, host = trainer()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    sampler = VLLM(max_response_tokens=TURNS * TURN).start(host)
    sampler.load(engine.weights(), version=0)
    prompts = [tokenizer.encode(f"What is {i} + {3 * i}? Explain each step.") for i in range(8)]
    rows = [RolloutRequest(ids, group, sample) for group, ids in enumerate(prompts) for sample in range(8)]
    limits = Limits(host.max_length, TURN, TURNS)
    runner = EnvironmentRunner(Turns(), limits, timeout_seconds=60, concurrency=64, by_turn=False)

    def one_turn() -> int:
        return sum(len(each.ids) for each in sampler.sample(rows, step=0, seed=0))

    def several_turns() -> int:
        rollouts = runner.run(rows, sampler.stream, step=0, seed=0, temperature=1.0, version=0)
        assert all(not each.error for each in rollouts)
        return sum(sum(row.row.completion.mask or ()) for each in rollouts for row in each.rows)

    try:
        assert one_turn() == several_turns() == len(rows) * TURNS * TURN
        if benchmark.disabled:
            return
        times: dict[str, list[float]] = {"one turn": [], "several turns": []}
        for _ in range(ROUNDS):
            times["one turn"].append(seconds(one_turn))
            times["several turns"].append(seconds(several_turns))
        median = {key: statistics.median(values) for key, values in times.items()}
        ratio = median["one turn"] / median["several turns"]
        benchmark.extra_info.update(seconds=times, ratio=ratio, dtype=host.dtype, threads=1)
        benchmark.pedantic(several_turns, rounds=1)
        assert ratio > KEPT, f"{ratio:.2f} of the tokens per second of one turn, {KEPT} are required"
    finally:
        runner.close()
        sampler.close()
        torch.set_num_threads(threads)
