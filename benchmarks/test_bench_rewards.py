"""Speed of grading 1,024 mathematical answers relative to math-verify, in one process and in a pool.

Wall time, because the work is spread over processes; all three alternate. Every answer is another one, so no
cache of parsed formulas helps. Run: ``make bench ONLY=rewards``.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import titanrl

COUNT, ROUNDS = 1024, 2
FORMS: tuple[Callable[[int, int], tuple[str, str]], ...] = (
    lambda a, b: (rf"The answer is \boxed{{{a}}}.", str(a)),
    lambda a, b: (rf"So we get $\boxed{{\frac{{{a}}}{{{b}}}}}$.", rf"\frac{{{2 * a}}}{{{2 * b}}}"),
    lambda a, b: (rf"Hence $x = \boxed{{{a}\sqrt{{{b}}}}}$.", rf"{a}\sqrt{{{b}}}"),
    lambda a, b: (rf"\boxed{{x^2 + {a}x + {b}}}", rf"{b} + {a}x + x^2"),
    lambda a, b: (rf"The interval is $\boxed{{[{a}, {a + b})}}$.", rf"[{a},{a + b})"),
    lambda a, b: (rf"The final answer is ${a + b}$.", str(a + b)),
    lambda a, b: (rf"\boxed{{({a}, {b})}}", rf"({a},{b})"),
    lambda a, b: (rf"\boxed{{{a}.{b}}}", rf"{a + 1}.{b}"),
)
"""Values of two numbers -> response and reference answer; the last form is wrong."""


def answers(seed: int) -> list[tuple[str, str]]:
    """Returns 1,024 different pairs of a response and a reference answer, one in eight wrong."""
    rng = random.Random(seed)
    return [FORMS[row % len(FORMS)](rng.randrange(2, 10**6), rng.randrange(2, 10**6)) for row in range(COUNT)]


def verify_one(pair: tuple[str, str]) -> float:
    """Grades one pair by math-verify alone."""
    from math_verify import parse, verify

    return float(verify(parse(f"${pair[1]}$"), parse(pair[0])))


def quiet() -> None:
    """Silences the parser's warnings in a worker."""
    logging.disable(logging.CRITICAL)


@pytest.mark.filterwarnings("ignore")
def test_bench_math_answer(benchmark: Any) -> None:
    """The reward on a batch against a loop over math-verify, and against a pool of as many processes."""
    reward = titanrl.build("reward", {"name": "math_answer"})
    cores = len(os.sched_getaffinity(0))

    def grade(pairs: list[tuple[str, str]]) -> list[float]:
        text = {"response": [pair[0] for pair in pairs], "answer": [pair[1] for pair in pairs]}
        scores: list[float] = reward(TensorDict({"text": text}, batch_size=[len(pairs)])).tolist()
        return scores

    expected = [float(row % len(FORMS) < len(FORMS) - 1) for row in range(COUNT)]
    if benchmark.disabled:
        assert grade(answers(0)[:16]) == expected[:16]
        return
    times: dict[str, list[float]] = {"ours": [], "math-verify": [], "math-verify, pool": []}
    quiet()
    with multiprocessing.get_context("spawn").Pool(cores, initializer=quiet) as pool:
        calls: dict[str, Callable[[list[tuple[str, str]]], list[float]]] = {
            "ours": grade,
            "math-verify": lambda pairs: [verify_one(pair) for pair in pairs],
            "math-verify, pool": lambda pairs: pool.map(verify_one, pairs, chunksize=16),
        }
        for call in calls.values():  # Processes start and import.
            assert call(answers(-1)[:64]) == expected[:64]
        for seed in range(ROUNDS):
            for position, (name, call) in enumerate(calls.items()):
                pairs = answers(len(calls) * seed + position)
                began = time.perf_counter()
                scores = call(pairs)
                times[name].append(time.perf_counter() - began)
                wrong = sum(score != truth for score, truth in zip(scores, expected, strict=True))
                # math-verify's own timeout of 5 s may strike on a busy machine.
                assert wrong <= (0 if name == "ours" else COUNT // 100)
    median = {name: statistics.median(values) for name, values in times.items()}
    ratios = {name: median[name] / median["ours"] for name in median if name != "ours"}
    benchmark.extra_info.update(
        seconds=times, ratio=ratios, threads=cores, dtype="none", torch=torch.__version__
    )
    benchmark.pedantic(grade, args=(answers(-2),), rounds=1)
    assert ratios["math-verify"] >= 1.7 * min(cores, 2) / 2, benchmark.extra_info
    assert ratios["math-verify, pool"] >= 1.0, benchmark.extra_info
