"""The rewards that an environment gives: of rollouts, turns and agents."""

from __future__ import annotations

import torch
from tensordict import TensorDict

import titanrl
from titanrl.algorithm.rollouts import join_rollouts
from titanrl.config.tables import Reward
from titanrl.rollout.rewards import score_rewards


def outcome(
    reward: float | None, turns: list[float], tokens: list[int], error: str = ""
) -> dict[str, object]:
    rewards = {"style": 0.25}
    return {
        "error": error,
        "reward": reward,
        "rewards": rewards,
        "turn_rewards": turns,
        "turn_tokens": tokens,
    }


def batch() -> TensorDict:
    """Returns two rollouts: one of two rows, whose three turns took 2 + 1 and 2 tokens, and a failed one."""
    first = outcome(3.0, [1.0, 0.5, 1.5], [2, 1, 2])
    mask = [[0, 1, 1, 0, 1], [0, 0, 0, 1, 1], [0, 0, 0, 0, 1]]
    return TensorDict(
        {
            "loss_mask": torch.tensor(mask).bool(),
            "labels": torch.arange(15).view(3, 5),
            "rollout_id": torch.tensor([0, 0, 1]),
            "agent_id": torch.zeros(3, dtype=torch.int64),
            "group_id": torch.zeros(3, dtype=torch.int64),
            "row_id": torch.tensor([0, 1, 9]),
            "text": {"outcome": [first, first, outcome(None, [], [], "OSError: gone")]},
        },
        batch_size=[3],
    )


def term(name: str, **keys: object) -> Reward:
    table = {key: keys.pop(key) for key in ("output",) if key in keys}
    return Reward(component=titanrl.build("reward", {"name": name, **table}), **keys)  # type: ignore[arg-type]


def test_turns_are_rewarded_at_their_last_tokens_over_all_rows() -> None:
    rollouts = join_rollouts(batch())
    assert rollouts is not None
    scored = score_rewards(rollouts.batch, [term("environment_turns", failure_score=-1.0)])
    per_token = rollouts.spread(scored.scores["token_rewards", "environment_turns"])
    assert per_token.tolist() == [[0, 0, 1.0, 0, 0.5], [0, 0, 0, 0, 1.5], [0, 0, 0, 0, -1.0]]
    assert rollouts.spread(scored.scores["reward"]).tolist() == [3.0, 3.0, -1.0]
    assert list(scored.reasons["environment_turns"]) == [1]


def test_a_failed_rollout_has_the_reason_of_its_environment() -> None:
    rollouts = join_rollouts(batch())
    assert rollouts is not None
    scored = score_rewards(rollouts.batch, [term("environment", failure_score=-2.0)])
    assert scored.scores["reward"].tolist() == [3.0, -2.0]
    assert scored.reasons == {"environment": {1: "OSError: gone"}}


def test_further_rewards_are_read_by_name() -> None:
    rows = batch()[:1]
    scored = score_rewards(rows, [term("environment", output="style")])
    assert scored.scores["reward"].tolist() == [0.25]
    scored = score_rewards(rows, [term("environment", output="grace")])
    assert scored.reasons == {"environment": {0: "the environment gave no reward 'grace'"}}
