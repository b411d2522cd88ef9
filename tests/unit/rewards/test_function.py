"""The reward `function`: every signature, threads and processes, and mistakes in the table."""

from __future__ import annotations

import time
from typing import Annotated, Any

import pytest
from tensordict import TensorDict

from tests.unit.rewards import my_rewards
from tests.unit.rewards.test_rewards import make
from titanrl import ConfigError
from titanrl.config.tables import Reward
from titanrl.registry.decode import Flattened, decode
from titanrl.rollout.rewards import Scored, score_rewards

MODULE = "tests.unit.rewards.my_rewards"


def term(name: str, **keys: Any) -> Reward:
    table = {"name": "function", "function": f"{MODULE}:{name}", "label": "r", **keys}
    reward: Reward = decode(Annotated[Reward, Flattened("reward")], table)
    return reward


def batch_of(*responses: str, **columns: Any) -> TensorDict:
    batch = make(list(responses))
    own = {"level": 2, "reward_model": {"ground_truth": "5"}, **columns}
    batch["text", "columns"] = [dict(own) for _ in responses]
    batch["text", "source"] = ["gsm8k"] * len(responses)
    return batch


def score(reward: Reward, batch: TensorDict) -> tuple[list[float], dict[int, str]]:
    scored: Scored = score_rewards(batch, [reward])
    return scored.scores["reward"].tolist(), scored.reasons["r"]


@pytest.mark.parametrize(
    ("name", "keys", "expected"),
    [
        ("per_row", {}, [241.0, 242.0]),  # The prompt has four letters in the batch of test_rewards.
        ("per_row", {"arguments": {"level": "missing"}}, [41.0, 42.0]),
        ("per_batch", {}, [3.0, 2.0]),
        ("for_trl", {}, [3.0, 4.0]),
        ("for_trl_chats", {"chat": True, "arguments": {"solution": "answer"}}, [1.0, 0.0]),
        ("for_trl_chats", {"chat": True, "arguments": {"solution": "reward_model.ground_truth"}}, [0.0, 0.0]),
        ("compute_score", {}, [0.0, 0.0]),
        ("compute_score", {"arguments": {"ground_truth": "answer"}}, [1.0, 0.0]),
    ],
)
def test_function_is_called_as_its_parameters_say(
    name: str, keys: dict[str, Any], expected: list[float]
) -> None:
    batch = batch_of("4", "55")
    batch["text", "prompt"] = ["abcd"] * 2
    assert score(term(name, **keys), batch) == (expected, {})


def test_missing_score_is_of_its_row_alone() -> None:
    reward = term("per_batch", failure_score=-1.0)
    assert score(reward, batch_of("4", "skip", "4")) == ([3.0, -1.0, 3.0], {1: "returned nan"})


def test_missing_column_and_wrong_number_of_scores_are_named() -> None:
    batch = batch_of("4", "4")
    batch["text", "columns"] = [{}, {"level": 1}]
    scores, reasons = score(term("per_batch"), batch)
    assert scores == [0.0, 2.0]
    assert reasons[0].startswith("ValueError: the row has no column 'level', which the function reads as")
    _, reasons = score(term("short"), batch_of("a", "b", "c"))
    assert not reasons  # Called for each row alone, it is right.


@pytest.mark.slow
def test_async_functions_share_one_event_loop_and_run_concurrently() -> None:
    start = time.monotonic()
    assert score(term("later", concurrency=16), batch_of(*["ab"] * 32)) == ([2.0] * 32, {})
    assert time.monotonic() - start < 2.5
    assert score(term("later"), batch_of("a")) == ([1.0], {})
    assert len(my_rewards.loops) == 1


@pytest.mark.slow
def test_async_function_that_hangs_blocks_or_exits_fails_alone() -> None:
    reward = term("mixed", timeout_seconds=1.0, concurrency=2)
    scores, reasons = score(reward, batch_of("a", "hang", "exit", "b", "block"))
    assert scores == [1.0, 0.0, 0.0, 1.0, 0.0]
    late = "took longer than its timeout_seconds, 1"
    assert reasons == {1: late, 2: "RuntimeError: SystemExit: 1", 4: late}
    assert score(reward, batch_of("a")) == ([1.0], {})


@pytest.mark.slow
def test_process_that_exits_forks_or_hangs_costs_its_row_alone() -> None:
    reward = term("hostile", isolation="process", timeout_seconds=4.0)
    responses = ["a", "exit", "kill", "fork", "threads", "sleep", "raise", "b"]
    scores, reasons = score(reward, batch_of(*responses))
    assert scores == [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    assert reasons == {1: "died", 2: "died", 5: "timeout", 6: "ValueError: no"}


@pytest.mark.slow
def test_processes_give_up_after_three_timeouts_in_a_row() -> None:
    reward = term("hostile", isolation="process", timeout_seconds=1.0)
    start = time.monotonic()
    _, reasons = score(reward, batch_of(*["sleep"] * 40))
    assert time.monotonic() - start < 120  # Of 40 timeouts and a start of each worker; 3 s when idle.
    assert sum(why.startswith("given up in this batch") for why in reasons.values()) > 30


def test_time_limit_counts_rows_and_concurrency() -> None:
    assert term("per_row", timeout_seconds=2.0, concurrency=4).max_seconds(10) == 6.0
    assert term("per_batch", timeout_seconds=2.0).max_seconds(10) == 10.0


def test_table_declares_what_the_function_reads() -> None:
    component: Any = term("per_batch").component
    assert component.in_columns == ("level",)
    assert set(component.in_keys) == {("text", "response"), ("text", "answer"), ("text", "columns")}
    assert (term("compute_score").component.in_columns, term("per_row").component.in_columns) == ((), ())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"function": "my_rewards"}, "function must be 'module:name', got 'my_rewards'"),
        ({"function": "no_such_module:f"}, "cannot be imported: ModuleNotFoundError"),
        ({"function": f"{MODULE}:nothing"}, "cannot be imported: AttributeError"),
        ({"function": f"{MODULE}:loops"}, "must be a function, got set"),
        ({"function": f"{MODULE}:wrong"}, "must have one of the parameters solution_str, completions"),
        ({"function": f"{MODULE}:per_row", "arguments": {"levels": "x"}}, "arguments must name parameters"),
    ],
)
def test_mistakes_of_the_table_are_named(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        decode(Annotated[Reward, Flattened("reward")], {"name": "function", **keys})
