"""Rewards on one scale: moments of all rewards so far, in any split; what is equal, unscored or far out."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from titanrl.algorithm.reward_scaling import RewardScaling
from titanrl.errors import ConfigError
from titanrl.registry.decode import decode

FIRST, SECOND = [0.1, 0.35, 0.7, -2.0], [3.0, 0.35, 1.1]


def test_rewards_are_divided_by_the_running_standard_deviation():
    scaling = RewardScaling()
    for part in (FIRST, SECOND):
        scaling.update(torch.tensor(part))
    std = statistics.stdev(FIRST + SECOND)
    assert scaling.std == pytest.approx(std, rel=1e-6)
    assert scaling(torch.tensor(SECOND)).tolist() == pytest.approx([r / std for r in SECOND], rel=1e-6)


def test_center_subtracts_the_running_mean_before_clipping():
    scaling = RewardScaling(center=True, clip=1.5)
    scaling.update(torch.tensor(FIRST + SECOND))
    mean, std = statistics.mean(FIRST + SECOND), statistics.stdev(FIRST + SECOND)
    wanted = [max(-1.5, min(1.5, (r - mean) / std)) for r in FIRST + SECOND]
    assert 1.5 in wanted
    assert -1.5 in wanted
    assert scaling(torch.tensor(FIRST + SECOND)).tolist() == pytest.approx(wanted, rel=1e-6)
    assert RewardScaling(divide=False, clip=1.0)(torch.tensor([3.0, -0.4])).tolist() == [
        1.0,
        pytest.approx(-0.4),
    ]


def test_constant_rewards_are_not_divided():
    scaling = RewardScaling()
    for _ in range(3):
        scaling.update(torch.full((8,), 0.35))
    assert scaling.std == 1.0
    assert scaling(torch.tensor([0.35])).tolist() == torch.tensor([0.35]).tolist()


def test_unscored_rows_are_excluded_from_running_moments():
    scaling, scored = RewardScaling(center=True), RewardScaling(center=True)
    scaling.update(torch.tensor([math.nan, *FIRST]))
    scaling.update(torch.tensor([math.nan]))
    scored.update(torch.tensor(FIRST))
    assert scaling == scored
    assert scaling(torch.tensor([math.nan])).isnan().all()


def test_resumed_scaling_continues_exactly():
    whole = RewardScaling()
    whole.update(torch.tensor(FIRST))
    resumed = RewardScaling()
    resumed.load_state_dict(whole.state_dict())
    for scaling in (whole, resumed):
        scaling.update(torch.tensor(SECOND))
    assert resumed == whole


def test_reward_scaling_without_effect_is_refused():
    with pytest.raises(ConfigError, match="divide must be true where center and clip are off"):
        decode(RewardScaling, {"divide": False})
    with pytest.raises(ConfigError, match=r"clip must be in \(0, inf\], got 0"):
        decode(RewardScaling, {"clip": 0.0})
