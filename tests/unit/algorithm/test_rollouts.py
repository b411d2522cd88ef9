"""Statistics count a rollout once, however many rows it has."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from titanrl.algorithm.compute_advantages import compute_advantages, compute_loss_weights
from titanrl.algorithm.rollouts import join_rollouts, rollouts_of
from titanrl.algorithm.table import Algorithm
from titanrl.errors import TrainingError
from titanrl.registry.decode import decode

GROUPS, SAMPLES, LENGTH = 3, 4, 7


def rows(generator: torch.Generator, counts: list[int]) -> TensorDict:
    """Returns rollouts with these numbers of rows, shuffled; all rows of a rollout have its reward."""
    rollout = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    number = torch.cat([torch.arange(count) for count in counts])
    size = (len(rollout), LENGTH)
    mask = torch.rand(size, generator=generator) < 0.6
    reward = torch.randint(0, 3, (len(counts),), generator=generator).float()
    batch = TensorDict(
        {
            "rollout_id": rollout,
            "row_id": rollout * 16 + number,
            "agent_id": torch.zeros_like(rollout),
            "group_id": rollout // SAMPLES,
            "prompt_id": rollout // SAMPLES,
            "loss_mask": mask,
            "labels": torch.randint(1, 99, size, generator=generator),
            "old_logprob": -torch.rand(size, generator=generator),
            "ref_logprob": -torch.rand(size, generator=generator),
            "sampler_logprob": -torch.rand(size, generator=generator),
            "value": torch.rand(size, generator=generator),
            "num_turns": torch.ones_like(rollout),
            "finish_reason": torch.zeros(len(rollout), dtype=torch.int8),
            "reward": reward[rollout],
            "rewards": {"a": reward[rollout]},
        },
        batch_size=[len(rollout)],
    )
    return batch[torch.randperm(len(batch), generator=generator)]


def by_hand(batch: TensorDict) -> TensorDict:
    """Returns each rollout as one row: the loss tokens of its rows, in their order."""
    ids = list(dict.fromkeys(batch["rollout_id"].tolist()))
    columns: dict[str, list[torch.Tensor]] = {}
    for rollout in ids:
        own = [i for i in range(len(batch)) if int(batch["rollout_id"][i]) == rollout]
        own.sort(key=lambda i: int(batch["row_id"][i]))
        tokens = {
            key: torch.cat([batch[key][i][batch["loss_mask"][i]] for i in own])
            for key in ("labels", "old_logprob", "ref_logprob", "sampler_logprob", "value", "loss_mask")
        }
        for key, value in tokens.items():
            padded = torch.zeros(LENGTH * 4, dtype=value.dtype)
            padded[: len(value)] = value
            columns.setdefault(key, []).append(padded)
        for key in ("group_id", "prompt_id", "reward", "finish_reason"):
            columns.setdefault(key, []).append(batch[key][own[0]])
    stacked = {key: torch.stack(values) for key, values in columns.items()}
    stacked["rewards"] = TensorDict({"a": stacked["reward"]}, batch_size=[len(ids)])
    return TensorDict({**stacked, "row_id": torch.tensor(ids)}, batch_size=[len(ids)])


def algorithm(**tables: object) -> Algorithm:
    table = {
        "loss": {"name": "ppo_clip"},
        "aggregation": {"name": "token_mean"},
        "advantage": {"name": "grpo"},
        **tables,
    }
    found: Algorithm = decode(Algorithm, table)
    return found


ALGORITHMS = {
    "grpo": algorithm(),
    "sequence mean": algorithm(aggregation={"name": "sequence_mean"}),
    "group mean": algorithm(aggregation={"name": "group_mean"}),
    "filtered": algorithm(filter=[{"name": "zero_variance"}]),
    "rloo, corrected": algorithm(
        advantage={"name": "rloo"}, correction=[{"name": "tis", "level": "sequence", "cap": 2.0}]
    ),
    "gae": algorithm(advantage={"name": "gae", "gamma": 0.9, "lam": 0.8}),
    "KL in the reward": algorithm(
        advantage={"name": "reinforce_plus_plus"},
        kl={"name": "k1", "placement": "reward", "coefficient": 0.1},
    ),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rollouts_of_several_rows_give_what_one_row_gives(name: str) -> None:
    chosen, generator = ALGORITHMS[name], torch.Generator().manual_seed(4)
    batch = rows(generator, [1, 3, 2, 1, 1, 1, 4, 2, 3, 1, 2, 2])
    whole = by_hand(batch)
    got, metrics = compute_advantages(batch, chosen)
    expected, expected_metrics = compute_advantages(whole, chosen)
    assert metrics == pytest.approx(expected_metrics)
    got, expected = compute_loss_weights(got, chosen), compute_loss_weights(expected, chosen)
    mask = got["loss_mask"]
    assert mask.any()
    for key in ("advantage", "loss_weight", "correction_weight", "token_reward", "returns"):
        assert (key in got) == (key in expected)
        if key in got:
            assert not got[key][~mask].any()
            joined = join_rollouts(got)
            assert joined is not None
            values = joined.batch[key]
            torch.testing.assert_close(values, expected[key][:, : values.shape[1]])


def test_single_rows_pass_through_untouched() -> None:
    batch = rows(torch.Generator().manual_seed(4), [1] * 12)
    assert join_rollouts(batch) is None
    assert rollouts_of(batch) is batch


def test_agents_are_compared_with_themselves_in_other_rollouts() -> None:
    batch = rows(torch.Generator().manual_seed(4), [2, 2, 2, 2])
    batch["agent_id"] = batch["row_id"] % 16
    batch["reward"] = 10.0 * batch["agent_id"] + batch["rollout_id"].float()
    got, _ = compute_advantages(batch, algorithm(advantage={"name": "rloo"}))
    mask = batch["loss_mask"]
    expected = (batch["rollout_id"].float() - 1.5) * 4 / 3
    torch.testing.assert_close(got["advantage"], torch.where(mask, expected[:, None], 0.0))
    assert len(rollouts_of(batch)) == 8
    assert (got["group_id"] == batch["group_id"]).all()


def test_advantages_that_compare_turns_see_each_turn() -> None:
    assert algorithm(advantage={"name": "gigpo"}).compares_turns
    assert not algorithm().compares_turns


def test_losses_that_compare_responses_refuse_rollouts_of_several_rows() -> None:
    chosen = algorithm(loss={"name": "gvpo"})
    batch = rows(torch.Generator().manual_seed(4), [1, 3, 2, 1])
    with pytest.raises(TrainingError, match="'gvpo' compares whole responses, and a rollout"):
        compute_loss_weights(batch, chosen)
