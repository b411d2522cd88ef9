"""Statistics of a whole row or batch: sequence means, square batches, reward metrics, running baselines."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from tensordict import TensorDict

import titanrl
from tests.laws.estimate_batches import label, tables
from tests.unit.algorithm.test_compute_advantages import algorithm, batch_of
from tests.unit.config.conftest import Write, registry_as_before, write
from titanrl import PolicyOutputs
from titanrl.algorithm.compute_advantages import compute_advantages
from titanrl.algorithm.objective import Objective
from titanrl.config import load
from titanrl.config.tables import Reward
from titanrl.data.prompts import PromptLoader
from titanrl.errors import ConfigError
from titanrl.ops.masked import masked_mean
from titanrl.ops.sequence import sequence_mean
from titanrl.rollout.rewards import score_rewards
from titanrl.training.stages import batch_metrics
from titanrl.training.state import LoopState, components_of

__all__ = ["registry_as_before", "write"]

# --------------------------------------------------------------- means along a row


@pytest.mark.parametrize("name", ["gspo", "gmpo", "ppo_clip", "reinforce"])
def test_sequence_advantage_is_the_mean_over_response_tokens(name: str) -> None:
    mask = torch.tensor([[True, True, False, False]])
    batch = {
        "loss_mask": mask,
        "old_logprob": torch.full((1, 4), -1.0),
        "advantage": torch.tensor([[1.0, 1.0, 100.0, 100.0]]),
        "loss_weight": titanrl.build("aggregation", {"name": "sequence_mean"})(mask, torch.zeros(1).long()),
    }
    policy = PolicyOutputs(logprob=torch.full((1, 4), -1.0))
    total, _ = Objective(loss=titanrl.build("loss", {"name": name}))(policy, batch, torch.zeros(2))
    # With a ratio of 1 the loss is the advantage less its sign; reinforce has the log-prob -1 as a factor.
    assert total.item() == pytest.approx(1.0 if name == "reinforce" else -1.0)


def test_sequence_mean_broadcasts_per_row_in_a_square_batch() -> None:
    x, mask = torch.tensor([[1.0, 2.0], [3.0, 7.0]]), torch.ones(2, 2, dtype=torch.bool)
    for mean in (sequence_mean(x, mask), masked_mean(x, mask, -1, keepdim=True)):
        assert (x - mean).tolist() == [[-0.5, 0.5], [-2.0, 2.0]]


@pytest.mark.slow
@pytest.mark.parametrize("table", tables("advantage"), ids=label)
def test_advantages_of_a_square_batch_equal_those_of_a_padded_one(table: dict[str, object]) -> None:
    generator = torch.Generator().manual_seed(0)
    keys = {
        key: torch.rand(4, 4, generator=generator) - 1
        for key in ("token_reward", "value", "old_logprob", "teacher_logprob", "sum_pi_squared")
    }
    square = batch_of(
        loss_mask=torch.ones(4, 4, dtype=torch.bool),
        group_id=[0, 0, 0, 0],
        prompt_id=[0, 0, 0, 0],
        episode_id=[0, 0, 1, 1],
        turn_id=[0, 1, 0, 1],
        state_id=[0, 1, 0, 1],
        step_reward=torch.rand(4, generator=generator),
        reward=[1.0, 0.25, 0.5, 0.75],
        baseline_reward=torch.rand(4, generator=generator),
        final_value=torch.zeros(4),
        finish_reason=torch.zeros(4, dtype=torch.int8),
        agent_id=[0, 0, 0, 0],
        **keys,
    )
    scores = {name: torch.rand(4, generator=generator) for name in table.get("rewards", ())}
    square["rewards"] = batch_of(loss_mask=square["loss_mask"], **scores)
    wide = square.apply(lambda x: torch.nn.functional.pad(x, (0, 3)) if x.ndim == 2 else x)
    expected = titanrl.build("advantage", table)(wide).advantage[:, :4]
    got = titanrl.build("advantage", table)(square).advantage
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    assert got.any()


RELATIVE = [
    table
    for table in tables("advantage")
    if getattr(type(titanrl.build("advantage", table)), "is_group_relative", True)
]


@pytest.mark.parametrize("name", sorted({str(table["name"]) for table in RELATIVE}))
def test_group_relative_advantage_refuses_one_sample_per_prompt(write: Write, name: str) -> None:
    table = next(table for table in RELATIVE if table["name"] == name)
    settings = ", ".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value!r}" for key, value in table.items()
    )
    with pytest.raises(ConfigError, match=rf"samples_per_prompt must be >= 2 for advantage '{name}', got 1"):
        load(write(), [f"algorithm.advantage={{{settings}}}", "loop.samples_per_prompt=1"])


# ------------------------------------------------------------------------ metrics


@dataclass(frozen=True)
class Constant:
    """A reward that is the same for every row."""

    value: float

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        return torch.full(batch.batch_size, self.value)


def test_reward_mean_metric_applies_the_reward_weights() -> None:
    batch = batch_of(loss_mask=[[True]], group_id=[0], finish_reason=[0])
    rewards = [
        Reward(component=Constant(1.0), weight=2.0, label="right"),
        Reward(component=Constant(0.4), weight=0.5, label="short"),
    ]
    scores, _ = score_rewards(batch, rewards)
    metrics = batch_metrics(batch.update(scores))
    assert metrics["reward/mean"] == pytest.approx(2.2)
    assert (metrics["reward/right"], metrics["reward/short"]) == (1.0, pytest.approx(0.4))


@pytest.mark.parametrize(
    ("returns", "value", "explained"),
    [([1, 2, 3, 4], [1, 2, 3, 3], 0.85), ([2, 2, 2], [1, 2, 3], None), ([2, 2, 2], [2, 2, 2], None)],
)
def test_explained_variance_is_absent_for_constant_returns(
    returns: list[int], value: list[int], explained: float | None
) -> None:
    """One row whose rewards-to-go are the returns."""
    to_go = torch.tensor([[*returns, 0.0]])
    batch = batch_of(
        loss_mask=[[True] * len(returns)],
        group_id=[0],
        reward=[0.0],
        finish_reason=[0],
        value=torch.tensor([value]).float(),
        token_reward=to_go[:, :-1] - to_go[:, 1:],
    )
    chosen = algorithm(advantage={"name": "gae", "lam": 1.0, "whiten": False})
    got, metrics = compute_advantages(batch, chosen)
    assert got["returns"].tolist() == [returns]
    assert metrics.get("critic/explained_variance") == (
        None if explained is None else pytest.approx(explained)
    )


# -------------------------------------------------------------- running statistics


def test_ema_baseline_covers_the_global_batch_and_is_checkpointed() -> None:
    """Ranks sample rewards [1, 2] and [3, 6]; each computes on all four, whose count is 4 and mean 3."""
    prompts = PromptLoader([None], lambda _: [1], seed=0, max_prompt_tokens=1)  # type: ignore[arg-type, list-item]
    ranks = [algorithm(advantage={"name": "ema_baseline", "decay": 0.5}) for _ in range(2)]
    batch = batch_of(loss_mask=[[True]] * 4, group_id=[0, 1, 2, 3], reward=[1.0, 2.0, 3.0, 6.0])
    for chosen in ranks:
        compute_advantages(batch, chosen)
    kept = 0.5**4
    states = [
        copy.deepcopy(LoopState(prompts.loader, components_of(chosen, (), None, None)).state_dict()["parts"])
        for chosen in ranks
    ]
    assert states[0] == states[1]
    assert states[0]["algorithm.advantage"] == {"baseline": {"0": pytest.approx((1 - kept) * 3.0)}}

    resumed = algorithm(advantage={"name": "ema_baseline", "decay": 0.5})
    LoopState(prompts.loader, components_of(resumed, (), None, None)).load_state_dict(
        LoopState(prompts.loader, components_of(ranks[0], (), None, None)).state_dict()
    )
    for chosen in (*ranks, resumed):
        compute_advantages(batch[[3, 0, 2, 1]], chosen)
        assert chosen.advantage is not None
        assert chosen.advantage.baseline[0] == pytest.approx((1 - kept * kept) * 3.0), "eight rows, not more"
