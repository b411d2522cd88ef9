"""Rows of the batch from rollouts in an environment."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import NonTensorData, NonTensorStack

from titanrl.data.collate import ROW_STRIDE, collate_rollouts
from titanrl.errors import TrainingError
from titanrl.protocols import Completion, FinishReason, TrajectoryRow
from titanrl.rollout.environments.recorder import RecordedRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict import TensorDict

    from titanrl.protocols import RolloutRequest
    from titanrl.rollout.environments.runner import Rollout

__all__ = ["environment_metrics", "rows_of_rollouts"]

MAX_ROWS = 4096
"""Upper bound of the rows of a rollout: row_id = rollout_id * MAX_ROWS + number of the row."""


def rows_of_rollouts(
    requests: Sequence[RolloutRequest],
    rollouts: Sequence[Rollout],
    *,
    decode: Callable[[Sequence[int]], str],
    version: int,
) -> TensorDict:
    """Return the batch that stage `sample` promises, with the keys of environments, batch_size [rows].

    A rollout in which nothing was sampled is one row without loss tokens.

    Args:
        requests: the prompts, one per rollout.
        rollouts: in the same order.
        decode: response ids -> text.
        version: the sampler's policy version.

    Raises:
        TrainingError: the environment returned rows, rewards or states that do not fit together.
    """
    row_requests: list[RolloutRequest] = []
    completions: list[Completion] = []
    numbers: dict[str, list[int]] = {key: [] for key in _INTEGERS}
    step_rewards: list[float] = []
    responses: list[str] = []
    transcripts: list[list[dict[str, Any]]] = []
    outcomes: list[dict[str, Any]] = []
    for request, rollout in zip(requests, rollouts, strict=True):
        _check(request, rollout)
        rows = rollout.rows or [_empty_row(request, version)]
        rollout_id = request.prompt_index * ROW_STRIDE + request.sample_index
        agents = {each.row.agent_id for each in rows}
        outcome_of = {agent: _outcome(rollout, rows, agent) for agent in agents}
        response = decode(rollout.last_ids)
        for number, (row, own, _) in enumerate(rows):
            row_requests.append(request._replace(prompt_ids=row.prompt_ids))
            completions.append(row.completion)
            given = len(row.completion.ids) - row.completion.num_sampled
            integers = {
                "row_id": rollout_id * MAX_ROWS + number,
                "rollout_id": rollout_id,
                "episode_id": request.sample_index,
                "turn_id": row.turns[0] if row.turns else 0,
                "agent_id": row.agent_id,
                "num_turns": len(row.turns),
                "input_length": len(row.prompt_ids) + given,
                "state_id": _state_id(rollout, rollout_id, own),
            }
            for key, value in integers.items():
                numbers[key].append(value)
            rewards = rollout.trajectory.turn_rewards
            step_rewards.append(sum(rewards[index] for index in own) if rewards else 0.0)
            responses.append(response)
            transcripts.append([dict(message) for message in rollout.trajectory.transcript])
            outcomes.append(outcome_of[row.agent_id])
    batch = collate_rollouts(row_requests, completions, decode=_no_text, version=version)
    for key, values in numbers.items():
        batch[key] = torch.tensor(values, dtype=torch.int64)
    batch["step_reward"] = torch.tensor(step_rewards, dtype=torch.float32)
    batch["text", "response"] = responses
    for key, each in (("transcript", transcripts), ("outcome", outcomes)):
        batch["text", key] = NonTensorStack(*map(NonTensorData, each))  # A list of lists would be a tensor.
    return batch


def environment_metrics(rollouts: Sequence[Rollout]) -> list[dict[str, float]]:
    """Return the numbers of each rollout that are averaged into ``environment/...``."""
    return [
        {
            **{name: float(value) for name, value in rollout.trajectory.metrics.items()},
            "turns": float(rollout.num_turns),
            "rows": float(len(rollout.rows)),
            "seconds": rollout.seconds,
            "failed_fraction": float(bool(rollout.error) and not rollout.is_limited),
            "limited_fraction": float(rollout.is_limited),
        }
        for rollout in rollouts
    ]


_INTEGERS = (
    "row_id",
    "rollout_id",
    "episode_id",
    "turn_id",
    "agent_id",
    "num_turns",
    "input_length",
    "state_id",
)


def _outcome(rollout: Rollout, rows: Sequence[RecordedRow], agent_id: int) -> dict[str, Any]:
    """Return what the rewards `environment` and `environment_turns` read about one agent's part."""
    trajectory = rollout.trajectory
    reward = trajectory.reward
    own = [row for row in rows if row.row.agent_id == agent_id]
    turns = [pair for row in own for pair in zip(row.requests, row.lengths, strict=False)]
    rewards = trajectory.turn_rewards
    return {
        "error": rollout.error,
        "reward": reward.get(agent_id) if isinstance(reward, Mapping) else reward,
        "rewards": dict(trajectory.rewards),
        "turn_rewards": [rewards[request] for request, _ in turns] if rewards else [],
        "turn_tokens": [length for _, length in turns],
    }


def _state_id(rollout: Rollout, rollout_id: int, requests: Sequence[int]) -> int:
    """Return the identity of the state that the first request of a row acted in, in [0, 2^63)."""
    states = rollout.trajectory.states
    first = requests[0] if requests else 0
    state = repr(states[first]) if states else f"{rollout_id}:{first}"
    return int.from_bytes(hashlib.blake2b(state.encode(), digest_size=8).digest(), "big") >> 1


def _empty_row(request: RolloutRequest, version: int) -> RecordedRow:
    """Return a row without sampled tokens: the prompt, whose last token is repeated as given text."""
    prompt = list(request.prompt_ids)
    completion = Completion([prompt[-1]], [0.0], FinishReason.ABORT, [False], [version])
    return RecordedRow(TrajectoryRow(prompt, completion, turns=()), ())


def _check(request: RolloutRequest, rollout: Rollout) -> None:
    trajectory, requests = rollout.trajectory, [each for row in rollout.rows for each in row.requests]
    where = f"the environment's rollout {request.sample_index} of prompt {request.prompt_index}"
    if len(rollout.rows) > MAX_ROWS:
        raise TrainingError(f"{where} has {len(rollout.rows)} rows, more than {MAX_ROWS}.")
    for name in ("turn_rewards", "states"):
        values = getattr(trajectory, name)
        if values and requests and len(values) <= max(requests):
            raise TrainingError(
                f"{where} returned {len(values)} {name} for {max(requests) + 1} requests or more; it must "
                "return one per request, in the order of asking."
            )


def _no_text(ids: Sequence[int]) -> str:
    del ids
    return ""
