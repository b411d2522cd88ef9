"""Rollouts in environments: rows from requests, limits, faults, and the batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

from titanrl.errors import TrainingError
from titanrl.protocols import (
    Ask,
    Completion,
    Environment,
    FinishReason,
    RolloutLimit,
    RolloutRequest,
    Sampler,
    Sampling,
    Trajectory,
)
from titanrl.rollout.environments.episode import Limits
from titanrl.rollout.environments.recorder import Recorder
from titanrl.rollout.environments.rows import environment_metrics, rows_of_rollouts
from titanrl.rollout.environments.runner import EnvironmentRunner, Rollout
from titanrl.rollout.whole_stream import WholeStream

LIMITS = Limits(max_length=40, max_response_tokens=3, max_turns=4)
END = 99


class Echo(Sampler):
    """Samples the last token of the prompt plus one, then an end token."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def sample(self, requests: Sequence[RolloutRequest], **given: Any) -> list[Completion]:
        self.calls += [(len(requests), given["seed"])]
        ids = [[request.prompt_ids[-1] + 1, END][: given["max_tokens"]] for request in requests]
        return [Completion(each, [-0.25] * len(each), int(each[-1] != END)) for each in ids]


class Play(Environment):
    """An environment whose ``run`` is a function."""

    def __init__(self, play: Callable[[RolloutRequest, Ask], Any]) -> None:
        self.run = play  # type: ignore[method-assign]


def request(prompt: int = 0, sample: int = 0) -> RolloutRequest:
    return RolloutRequest([10 * (prompt + 1)], prompt, sample)


def run(
    play: Callable[[RolloutRequest, Ask], Any],
    requests: Sequence[RolloutRequest],
    *,
    limits: Limits = LIMITS,
    timeout: float = 5.0,
    concurrency: int = 8,
    by_turn: bool = False,
) -> list[Rollout]:
    runner = EnvironmentRunner(
        Play(play), limits, timeout_seconds=timeout, concurrency=concurrency, by_turn=by_turn
    )
    stream = partial(WholeStream, Echo(), 3, 1)
    try:
        return runner.run(requests, stream, step=1, seed=3, temperature=1.0, version=7)
    finally:
        runner.close()


async def three_turns(row: RolloutRequest, ask: Ask) -> Trajectory:
    ids = list(row.prompt_ids)
    for turn in range(3):
        ids += [*(await ask(ids)).ids, 50 + turn]
    return Trajectory(1.0, turn_rewards=(0.5, 0.0, 0.5), metrics={"kept": 2.0})


def test_requests_that_continue_a_row_become_one_row() -> None:
    (rollout,) = run(three_turns, [request()])
    ((row, requests, lengths),) = rollout.rows
    assert list(row.prompt_ids) == [10]
    assert row.completion.ids == [11, END, 50, 51, END, 51, 52, END]
    assert row.completion.mask == [True, True, False, True, True, False, True, True]
    assert row.completion.versions == [7] * 8
    assert (list(row.turns), list(requests), list(lengths)) == ([0, 1, 2], [0, 1, 2], [2, 2, 2])
    assert rollout.num_turns == 3
    assert rollout.last_ids == [52, END]


def test_each_turn_is_a_row_where_turns_are_compared() -> None:
    (rollout,) = run(three_turns, [request()], by_turn=True)
    assert [len(each.row.prompt_ids) for each in rollout.rows] == [1, 4, 7]
    assert [each.requests for each in rollout.rows] == [(0,), (1,), (2,)]
    assert all(all(each.row.completion.mask or ()) for each in rollout.rows)


def test_a_prompt_that_rewrites_history_starts_a_branch() -> None:
    recorder, sampled = Recorder(), Completion([5, END], [-1.0, -1.0], FinishReason.STOP)
    for turn, ids in enumerate(([1, 2], [1, 2, 5, END, 6], [1, 2, 6, 7], [1, 2, 5, END, 6, 5, END])):
        recorder.record(ids, sampled, Sampling(), turn=turn, version=0)
    first, second = recorder.rows()
    assert first.row.completion.ids == [5, END, 6, 5, END, 5, END]
    assert first.row.completion.mask == [True, True, False, True, True, True, True]
    assert (list(second.row.prompt_ids), second.requests) == ([1, 2, 6, 7], (2,))


def test_agents_have_rows_of_their_own_and_untrained_tokens_none() -> None:
    recorder, sampled = Recorder(), Completion([5], [-1.0], FinishReason.LENGTH)
    recorder.record([1], sampled, Sampling(agent_id=0), turn=0, version=0)
    recorder.record([1, 5, 2], sampled, Sampling(agent_id=1), turn=0, version=0)
    recorder.record([1, 5, 2, 5], sampled, Sampling(agent_id=1, is_trained=False), turn=1, version=0)
    assert [(row.row.agent_id, row.row.completion.ids) for row in recorder.rows()] == [(0, [5]), (1, [5])]


def test_rollouts_keep_the_order_of_their_requests() -> None:
    async def play(row: RolloutRequest, ask: Ask) -> Trajectory:
        await asyncio.sleep(0.05 * (3 - row.prompt_index))
        await ask(row.prompt_ids)
        return Trajectory(float(row.prompt_index))

    rollouts = run(play, [request(prompt) for prompt in range(4)], concurrency=2)
    assert [each.trajectory.reward for each in rollouts] == [0.0, 1.0, 2.0, 3.0]
    assert [each.last_ids[0] for each in rollouts] == [11, 21, 31, 41]


def test_an_exception_fails_its_own_rollout_only() -> None:
    async def play(row: RolloutRequest, ask: Ask) -> Trajectory:
        await ask(row.prompt_ids)
        if row.sample_index == 1:
            raise SystemExit("no server")
        return Trajectory(1.0)

    good, bad, other = run(play, [request(0, sample) for sample in range(3)])
    assert (good.error, other.error) == ("", "")
    assert bad.error == "SystemExit: no server"
    assert [each.row.completion.ids for each in bad.rows] == [[11, END]]


def test_limits_of_turns_and_context_end_a_rollout() -> None:
    async def endless(row: RolloutRequest, ask: Ask) -> Trajectory:
        ids = list(row.prompt_ids) + [1] * (30 * row.sample_index)
        while True:
            ids += [*(await ask(ids)).ids, 50, 51, 52]

    turns, context = run(endless, [request(0, 0), request(0, 1)])
    assert turns.is_limited
    assert turns.num_turns == 4
    assert turns.error == "the rollout has used up max_turns = 4"
    assert context.is_limited
    assert context.error == "the rollout has used up [training] seq_len = 40"
    assert context.num_turns == 2
    assert len(context.rows[0].row.prompt_ids) + len(context.rows[0].row.completion.ids) <= 40


def test_an_environment_may_end_at_its_limit_with_a_reward() -> None:
    async def play(row: RolloutRequest, ask: Ask) -> Trajectory:
        ids = list(row.prompt_ids)
        try:
            while ask.room(ids) == 3:
                ids += [*(await ask(ids)).ids, 50]
            await ask(ids)
        except RolloutLimit:
            assert ask.room(ids) == 0
        return Trajectory(0.25)

    (rollout,) = run(play, [request()])
    assert (rollout.trajectory.reward, rollout.error, rollout.is_limited) == (0.25, "", False)


def test_a_stalled_environment_costs_itself_only() -> None:
    async def play(row: RolloutRequest, ask: Ask) -> Trajectory:
        await ask(row.prompt_ids)
        if row.sample_index == 1:
            await asyncio.sleep(60)
        await asyncio.sleep(0.05)
        return Trajectory(1.0)

    began = time.monotonic()
    rollouts = run(play, [request(0, sample) for sample in range(3)], timeout=0.3)
    assert time.monotonic() - began < 10
    assert [each.error for each in rollouts[::2]] == ["", ""]
    assert rollouts[1].error == "timed out: the environment took more than 0.3 s of its own"


def test_an_environment_that_blocks_the_loop_fails_and_the_others_begin_again() -> None:
    starts: list[int] = []

    async def play(row: RolloutRequest, ask: Ask) -> Trajectory:
        starts.append(row.sample_index)
        await ask(row.prompt_ids)
        if row.sample_index == 1:
            time.sleep(1.5)
        else:
            await asyncio.sleep(0.1)
        return Trajectory(1.0)

    rollouts = run(play, [request(0, sample) for sample in range(3)], timeout=0.3)
    assert [each.error for each in rollouts[::2]] == ["", ""]
    assert rollouts[1].error == "timed out: the environment blocked its event loop for more than 0.3 s"
    assert sorted(starts) == [0, 0, 1, 2, 2]


def test_time_of_the_sampler_is_not_the_environments() -> None:
    class Slow(Echo):
        def sample(self, requests: Sequence[RolloutRequest], **given: Any) -> list[Completion]:
            time.sleep(0.3)
            return super().sample(requests, **given)

    runner = EnvironmentRunner(Play(three_turns), LIMITS, timeout_seconds=0.2, concurrency=8, by_turn=False)
    (rollout,) = runner.run(
        [request()], partial(WholeStream, Slow(), 3), step=0, seed=3, temperature=1.0, version=0
    )
    runner.close()
    assert rollout.error == ""
    assert rollout.seconds < 0.2


def test_a_wrong_result_and_an_empty_prompt_are_failures() -> None:
    async def play(row: RolloutRequest, ask: Ask) -> Any:
        return await ask([]) if row.sample_index else 1.0

    wrong, empty = run(play, [request(0, 0), request(0, 1)])
    assert wrong.error == "TypeError: run() must return a Trajectory, got float"
    assert empty.error == "ValueError: ask() needs a prompt with at least one token."


def test_faults_of_the_sampler_end_the_run() -> None:
    class Broken(Echo):
        def sample(self, requests: Sequence[RolloutRequest], **given: Any) -> list[Completion]:
            raise RuntimeError("no memory")

    runner = EnvironmentRunner(Play(three_turns), LIMITS, timeout_seconds=5, concurrency=8, by_turn=False)
    with pytest.raises(RuntimeError, match="no memory"):
        runner.run([request()], partial(WholeStream, Broken(), 3), step=0, seed=3, temperature=1.0, version=0)
    runner.close()


def test_turns_are_sampled_with_seeds_of_their_own_and_together() -> None:
    sampler = Echo()
    runner = EnvironmentRunner(Play(three_turns), LIMITS, timeout_seconds=5, concurrency=8, by_turn=False)
    requests = [request(prompt, sample) for prompt in range(2) for sample in range(2)]
    runner.run(requests, partial(WholeStream, sampler, 3), step=0, seed=3, temperature=1.0, version=0)
    runner.close()
    assert [count for count, _ in sampler.calls] == [4, 4, 4]
    seeds = [seed for _, seed in sampler.calls]
    assert seeds[0] == 3
    assert len(set(seeds)) == 3


def batch_of(rollouts: Sequence[Rollout], requests: Sequence[RolloutRequest]) -> Any:
    return rows_of_rollouts(requests, rollouts, decode=lambda ids: f"{list(ids)}", version=7)


def test_batch_masks_given_tokens_and_holds_the_keys_of_environments() -> None:
    requests = [request(0, 0), request(0, 1)]
    batch = batch_of(run(three_turns, requests), requests)
    assert batch["labels"].tolist() == [[11, END, 50, 51, END, 51, 52, END]] * 2
    assert batch["loss_mask"].tolist() == [[True, True, False, True, True, False, True, True]] * 2
    assert batch["sampler_logprob"][0].tolist() == [-0.25, -0.25, 0, -0.25, -0.25, 0, -0.25, -0.25]
    assert batch["rollout_id"].tolist() == [0, 1]
    assert batch["episode_id"].tolist() == [0, 1]
    assert batch["num_turns"].tolist() == [3, 3]
    assert batch["input_length"].tolist() == [3, 3]
    assert batch["step_reward"].tolist() == [1.0, 1.0]
    assert batch["text", "response"] == ["[52, 99]", "[52, 99]"]
    assert len(set(batch["row_id"].tolist())) == 2


def test_a_rollout_without_a_sampled_token_is_a_row_without_loss_tokens() -> None:
    async def play(row: RolloutRequest, ask: Ask) -> Trajectory:
        raise OSError("no such game")

    batch = batch_of(run(play, [request()]), [request()])
    assert not batch["loss_mask"].any()
    assert batch["finish_reason"].tolist() == [FinishReason.ABORT]
    assert batch["text", "outcome"][0]["error"] == "OSError: no such game"


def test_states_identify_equal_situations_of_a_group() -> None:
    async def play(row: RolloutRequest, ask: Ask) -> Trajectory:
        await ask(row.prompt_ids)
        return Trajectory(states=["start" if row.sample_index < 2 else "other"])

    requests = [request(0, sample) for sample in range(3)]
    state = batch_of(run(play, requests), requests)["state_id"]
    assert state[0] == state[1] != state[2]
    async_free = run(three_turns, requests)
    assert len(set(batch_of(async_free, requests)["state_id"].tolist())) == 3


def test_too_few_rewards_of_turns_are_refused() -> None:
    async def play(row: RolloutRequest, ask: Ask) -> Trajectory:
        await three_turns(row, ask)
        return Trajectory(turn_rewards=(1.0,))

    with pytest.raises(TrainingError, match="returned 1 turn_rewards for 3 requests"):
        batch_of(run(play, [request()]), [request()])


def test_metrics_of_rollouts() -> None:
    (numbers,) = environment_metrics(run(three_turns, [request()]))
    assert numbers["kept"] == 2.0
    assert numbers["turns"] == 3.0
    assert numbers["failed_fraction"] == 0.0
    assert torch.isfinite(torch.tensor(numbers["seconds"]))
