"""Reward functions that tests/unit/rewards/test_function.py names by their dotted path."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

loops: set[int] = set()


def per_row(response: str, prompt: str, level: int = 0) -> float:
    return len(response) + 10 * len(prompt) + 100 * level


def per_batch(responses: list[str], answers: list[str], level: list[int]) -> list[float | None]:
    return [
        None if text == "skip" else float(text == answer) + number
        for text, answer, number in zip(responses, answers, level, strict=True)
    ]


def for_trl(prompts: list[str], completions: list[str], **kwargs: list[Any]) -> list[float]:
    assert sorted(kwargs) == ["level", "reward_model"]
    return [float(len(text) + level) for text, level in zip(completions, kwargs["level"], strict=True)]


def for_trl_chats(completions: list[list[dict[str, str]]], solution: list[str], **kwargs: Any) -> list[float]:
    return [float(each[0]["content"] == right) for each, right in zip(completions, solution, strict=True)]


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> dict[str, Any]:
    assert data_source == "gsm8k"
    return {"score": float(solution_str == ground_truth), "acc": True, "pred": solution_str}


async def later(response: str) -> float:
    loops.add(id(asyncio.get_running_loop()))
    await asyncio.sleep(0.3)
    return float(len(response))


async def mixed(response: str) -> float:
    match response:
        case "hang":
            await asyncio.sleep(60)
        case "block":
            time.sleep(3)
        case "exit":
            raise SystemExit(1)
    return 1.0


def hostile(response: str) -> float:
    match response:
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "fork":
            os.fork()
        case "threads":
            threading.Thread(target=time.sleep, args=(60,)).start()
        case "sleep":
            time.sleep(60)
        case "raise":
            raise ValueError("no")
    return 1.0


def wrong(text: str) -> float:
    return 1.0


def short(responses: list[str]) -> list[float]:
    return [1.0]
