"""score_rewards: one row's failure is that row's alone."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from titanrl import ConfigError, build
from titanrl.config.tables import MAX_TIMEOUTS_OF_A_BATCH
from titanrl.rollout.rewards import score_rewards


class Rude(BaseException):
    """Not an Exception."""


@dataclass(frozen=True)
class Term:
    component: Any
    label: str = "r"
    weight: float = 1.0
    failure_score: float = -7.0
    timeout_seconds: float = 60.0
    concurrency: int = 8
    on_failure: str = "score"
    after_thoughts: bool = False
    combine: str = "sum"
    gate_min: float = 0.5
    gate_reward: float = 0.0
    normalize: str = "none"

    def scored_text(self, response: str) -> str:
        return response


def make(*responses: str) -> TensorDict:
    text = {"response": list(responses), "answer": ["4"] * len(responses)}
    mask = torch.ones(len(responses), 3, dtype=torch.bool)
    return TensorDict({"loss_mask": mask, "text": text}, batch_size=[len(responses)])


def per_row(bad: Callable[[], Any]) -> Callable[[TensorDict], torch.Tensor]:
    """A reward that scores the length of each response and calls `bad` at the one called `bad`."""

    def reward(batch: TensorDict) -> torch.Tensor:
        values = [bad() if text == "bad" else float(len(text)) for text in batch["text", "response"]]
        return torch.tensor([value for value in values if value is not None])

    return reward


def raise_(error: BaseException) -> Callable[[], float]:
    def bad() -> float:
        raise error

    return bad


def spin() -> float:
    while True:
        pass


def sleep() -> float:
    time.sleep(10)
    return 1.0


class Mute(Exception):
    """Even its text raises."""

    def __str__(self) -> str:
        raise RuntimeError


LATE = "took longer than its timeout_seconds, 0.5"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (raise_(ValueError("no")), "ValueError: no"),
        (raise_(Rude()), "Rude: "),
        (raise_(Mute()), "Mute"),
        (raise_(SystemExit(0)), "SystemExit: 0"),
        (raise_(KeyboardInterrupt()), "KeyboardInterrupt: "),
        (lambda: float("nan"), "returned nan"),
        (lambda: float("inf"), "returned inf"),
        (lambda: 1e300, "returned inf"),
        (lambda: None, "returned torch.float32 of shape [0], not one number per row"),
        (spin, LATE),
        (sleep, LATE),
    ],
    ids=[
        "raises",
        "base_exception",
        "text_raises",
        "system_exit",
        "interrupt",
        "nan",
        "inf",
        "too_large",
        "wrong_count",
        "spins",
        "sleeps",
    ],
)
def test_failing_row_gets_the_failure_score_and_others_keep_theirs(bad: Callable[[], Any], why: str) -> None:
    """However the middle row fails, scores stay with their rows and the reason is recorded."""
    scores, reasons = score_rewards(make("a", "bad", "ccc"), [Term(per_row(bad), timeout_seconds=0.5)])
    assert scores["rewards", "r"].tolist() == [1.0, -7.0, 3.0]
    assert scores["reward"].tolist() == [1.0, -7.0, 3.0]
    assert reasons == {"r": {1: why}}


@pytest.mark.slow
def test_function_that_always_hangs_fails_on_every_row() -> None:
    start = time.monotonic()
    scored = score_rewards(make("a", "b"), [Term(lambda batch: sleep(), timeout_seconds=0.3)])
    assert scored.scores["reward"].tolist() == [-7.0, -7.0]
    assert scored.failures == (
        {"reward/r_failures": 2.0},
        {"r": "took longer than its timeout_seconds, 0.3"},
    )
    assert time.monotonic() - start < 5


def test_python_loop_is_stopped_at_the_timeout() -> None:
    before = set(threading.enumerate())
    score_rewards(make("bad"), [Term(per_row(spin), timeout_seconds=0.2)])
    deadline = time.monotonic() + 10
    while set(threading.enumerate()) - before:
        assert time.monotonic() < deadline, "the spinning thread still runs"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("result", "got"),
    [
        (0.5, "float"),
        ([1.0, 2.0, 3.0], "list of length 3"),
        (["1", "2"], "list of length 2"),
        ([[1.0, 2.0], [3.0, 4.0]], "list of length 2"),
        ("ab", "str"),
        ({"a": 1.0, "b": 2.0}, "dict"),
        (None, "NoneType"),
        (torch.zeros(2, 2), "torch.float32 of shape [2, 2]"),
        (torch.zeros(3), "torch.float32 of shape [3]"),
        (torch.zeros(2, dtype=torch.complex64), "torch.complex64 of shape [2]"),
    ],
)
def test_result_that_is_not_one_number_per_row_fails(result: Any, got: str) -> None:
    scores, reasons = score_rewards(make("a", "b"), [Term(lambda batch: result)])
    assert scores["reward"].tolist() == [-7.0, -7.0]
    assert reasons == {"r": dict.fromkeys((0, 1), f"returned {got}, not one number per row")}


async def later(values: list[float]) -> list[float]:
    await asyncio.sleep(0.01)
    return values


@pytest.mark.parametrize(
    "result",
    [
        [1, 0],
        (1.0, 0.0),
        [True, False],
        np.array([1.0, 0.0]),
        np.array([[1], [0]]),
        [np.float32(1), np.int64(0)],
        torch.tensor([1, 0]),
        torch.tensor([True, False]),
        torch.tensor([[1.0], [0.0]], dtype=torch.bfloat16),
        [torch.tensor(1.0), torch.tensor(0.0)],
    ],
    ids=lambda result: type(result).__name__,
)
def test_numbers_of_any_kind_are_scores(result: Any) -> None:
    scores, reasons = score_rewards(make("a", "b"), [Term(lambda batch: result)])
    assert scores["reward"].tolist() == [1.0, 0.0]
    assert scores["reward"].dtype == torch.float32
    assert reasons == {"r": {}}


def test_async_function_is_awaited() -> None:
    scores, reasons = score_rewards(make("a", "b"), [Term(lambda batch: later([1.0, 0.0]))])
    assert scores["reward"].tolist() == [1.0, 0.0]
    assert reasons == {"r": {}}


def test_none_is_a_missing_score_of_its_row() -> None:
    scores, reasons = score_rewards(make("a", "b"), [Term(lambda batch: [None, 2.0][: len(batch)])])
    assert scores["reward"].tolist() == [-7.0, 2.0]
    assert reasons == {"r": {0: "returned nan"}}


@pytest.mark.slow
def test_reward_is_given_up_after_three_timeouts_in_a_row() -> None:
    start = time.monotonic()
    texts = [f"{number}" for number in range(40)]
    scored = score_rewards(make(*texts), [Term(lambda batch: sleep(), timeout_seconds=0.3)])
    assert time.monotonic() - start < 8
    assert scored.failures.counts == {"reward/r_failures": 40.0}
    given_up = [why for why in scored.reasons["r"].values() if why.startswith("given up in this batch")]
    assert len(given_up) == 30  # Eight rows were running, and two more began after the first timeouts.


@pytest.mark.slow
def test_time_of_a_batch_is_five_timeouts_at_most() -> None:
    """Every third row is fast, so that no three timeouts follow each other."""

    def reward(batch: TensorDict) -> torch.Tensor:
        if len(batch) > 1 or batch["text", "response"][0] == "slow":
            sleep()
        return torch.ones(len(batch))

    term = Term(reward, timeout_seconds=0.4, concurrency=1)
    start = time.monotonic()
    scored = score_rewards(make(*["slow", "slow", "fast"] * 12), [term])
    assert time.monotonic() - start < MAX_TIMEOUTS_OF_A_BATCH * 0.4 + 0.5
    why = list(scored.reasons["r"].values())
    assert why[:2] == ["took longer than its timeout_seconds, 0.4"] * 2
    assert why[-1] == "given up in this batch, which took longer than 5 x timeout_seconds"
    assert float(scored.scores["reward"][2]) == 1.0


def test_rows_are_scored_concurrently_up_to_the_limit() -> None:
    """Each row waits until four rows run; the batch as a whole fails."""
    barrier, running, most = threading.Barrier(4), [0], [0]
    lock = threading.Lock()

    def reward(batch: TensorDict) -> torch.Tensor:
        if len(batch) > 1:
            raise ValueError("one row at a time")
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        barrier.wait(timeout=20)
        with lock:
            running[0] -= 1
        return torch.tensor([float(batch["text", "response"][0])])

    texts = [str(number) for number in range(8)]
    scores, reasons = score_rewards(make(*texts), [Term(reward, concurrency=4)])
    assert scores["reward"].tolist() == [float(text) for text in texts]
    assert most == [4]
    assert reasons == {"r": {}}


@pytest.mark.slow
def test_child_that_a_function_forks_does_not_go_on_as_a_second_trainer(tmp_path: Path) -> None:
    """The child returns from the function too; it ends there, and the parent's result counts."""

    def reward(batch: TensorDict) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Of forks with threads.
            child = os.fork()
        if child:
            (tmp_path / "child").write_text(str(child))
        return torch.ones(len(batch)) if child else torch.zeros(len(batch))

    scores, _ = score_rewards(make("a"), [Term(reward)])
    assert scores["reward"].tolist() == [1.0]
    _, status = os.waitpid(int((tmp_path / "child").read_text()), 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_failed_row_is_unscored_in_training_only() -> None:
    box = Term(build("reward", {"name": "exact_match"}), "box")
    brittle = Term(per_row(raise_(ValueError("no"))), failure_score=-2.0, on_failure="unscored")
    batch = make("bad", r"\boxed{4}")
    scores, reasons = score_rewards(batch, [brittle, box], unscored=True)
    assert torch.equal(scores["reward"].isnan(), torch.tensor([True, False]))
    assert torch.equal(scores["rewards", "r"].isnan(), torch.tensor([True, False]))
    assert scores["rewards", "box"].tolist() == [0.0, 1.0]
    assert reasons["r"] == {0: "ValueError: no"}
    scores, _ = score_rewards(batch, [brittle, box])
    assert scores["reward"].tolist() == [-2.0, 10.0]


@pytest.mark.usefixtures("interruptible")
def test_users_interrupt_stops_the_run() -> None:
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        score_rewards(make("a"), [Term(lambda batch: sleep(), timeout_seconds=20.0)])
    timer.join()


def test_reward_is_the_weighted_sum_and_components_stay_raw() -> None:
    lengths, box = per_row(spin), build("reward", {"name": "exact_match"})
    terms = [Term(lengths, "length", weight=-0.5), Term(box, "box", weight=2.0)]
    scores, reasons = score_rewards(make("abc", r"\boxed{4}"), terms)
    assert scores["rewards", "length"].tolist() == [3.0, 9.0]
    assert scores["rewards", "box"].tolist() == [0.0, 1.0]
    assert scores["reward"].tolist() == [-1.5, -2.5]
    assert reasons == {"length": {}, "box": {}}


def test_reward_is_called_after_the_reward_that_it_reads() -> None:
    cosine = build("reward", {"name": "length_cosine", "max_length": 3, "correct": "box"})
    terms = [Term(cosine, "shape"), Term(build("reward", {"name": "exact_match"}), "box", weight=0.0)]
    scores, _ = score_rewards(make(r"\boxed{4}", "no"), terms)
    # T = max_length, so f = 0: the longest right answer scores .5, the longest wrong one -.5.
    torch.testing.assert_close(scores["reward"], torch.tensor([0.5, -0.5]))


def test_reward_that_reads_a_missing_one_is_refused() -> None:
    cosine = build("reward", {"name": "length_cosine", "max_length": 3, "correct": "boks"})
    with pytest.raises(ConfigError, match=r"'shape' reads the reward 'boks'.*Rewards: shape, box"):
        score_rewards(
            make("a"), [Term(cosine, "shape"), Term(build("reward", {"name": "exact_match"}), "box")]
        )


def test_two_rewards_with_one_label_are_refused() -> None:
    with pytest.raises(ConfigError, match="label 'r' must be unique"):
        score_rewards(make("a"), [Term(per_row(spin)), Term(per_row(spin))])


@pytest.mark.slow
def test_pooled_reward_counts_timeouts() -> None:
    """The tower times out, the next row is scored, the failure is counted."""
    math = build("reward", {"name": "math_answer", "timeout_seconds": 3.0, "failure_score": -0.25})
    tower = "$5^{5^{5^{5^5}}}$"
    scores, reasons = score_rewards(make("$4$", tower, r"\boxed{4}"), [Term(math, failure_score=-0.25)])
    assert scores["reward"].tolist() == [1.0, -0.25, 1.0]
    assert reasons == {"r": {1: "timeout"}}


def test_score_rewards_does_not_modify_the_batch() -> None:
    batch = make("a", "b")
    batch.lock_()
    score_rewards(batch, [Term(per_row(spin))])
    assert set(batch.keys()) == {"loss_mask", "text"}


def test_empty_batch_gives_empty_scores() -> None:
    scored = score_rewards(make("a")[:0], [Term(per_row(spin))])
    assert scored.scores["reward"].shape == (0,)
    assert scored.failures == ({"reward/r_failures": 0.0}, {})


def test_first_failure_of_each_reward_is_logged() -> None:
    def picky(batch: TensorDict) -> torch.Tensor:
        raise ValueError(f"no {batch['text', 'response'][0]}")

    fine = Term(lambda batch: torch.ones(len(batch)), "fine")
    failures = score_rewards(make("a", "b"), [Term(picky), fine]).failures
    assert failures.reasons == {"r": "ValueError: no a"}
    assert failures.counts == {"reward/r_failures": 2.0, "reward/fine_failures": 0.0}
