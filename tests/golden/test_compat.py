"""experiments/compat: each preset against its framework's formulas, in plain Python and float64.

A whole objective is compared, value and gradient: advantages, corrections, loss, KL and weights as the loop
puts them together. The numbers are such that every bound that can matter cuts somewhere.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from titanrl import PolicyOutputs
from titanrl.algorithm.compute_advantages import compute_advantages, compute_loss_weights
from titanrl.algorithm.objective import Objective
from titanrl.algorithm.table import Algorithm
from titanrl.config import load

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "compat"
EXPERIMENT = """
base = "{base}"
[model]
path = "models/tiny"
[prompts]
name = "reasoning_gym"
dataset = "chain_sum"
[sampler]
name = "torch"
[[reward]]
name = "unfinished"
[loop]
steps = 1
prompts_per_step = 2
samples_per_prompt = 3
"""

Rows = list[list[float]]

GROUP = [0, 0, 0, 1, 1, 1]
REWARD = [1.0, 0.0, 0.625, 0.25, 0.75, 1.0]
OLD: Rows = [[-1.0, -2.0, -0.5], [-13.0, -3.0], [-1.5], [-22.0, -0.25], [-2.5, -0.5, -1.0], [-1.5]]
MOVED: Rows = [[0.0625, 0.5, -0.5], [12.0, 1.5], [-0.375], [21.0, -0.75], [0.125, -0.0625, -0.25], [1.0]]
"""log pi - log pi_old. In rows of A < 0 exp(1.5) meets dual clips, and 12 and 21 the clamps at 10 and 20."""
SAMPLER: Rows = [[0.5, 0.5, 0.5], [-0.125, 0.25], [0.0625], [0.125, 0.125], [-0.25, 0.125, 0.0625], [-0.5]]
"""log pi_old - log pi_sampler: the product over the first row is exp(1.5), above 3."""
REF: Rows = [[0.25, -0.5, 0.125], [-3.0, 0.5], [0.25], [-0.125, 0.75], [0.5, -11.0, 0.25], [0.0625]]
"""log pi - log pi_ref: -3 meets a bound of 10 on k3, and -11 one on k1 of the old policy."""


def plus(left: Rows, right: Rows, sign: int = 1) -> Rows:
    return [[a + sign * b for a, b in zip(*rows, strict=True)] for rows in zip(left, right, strict=True)]


LOGPROB = plus(OLD, MOVED)
SAMPLER_LOGPROB = plus(OLD, SAMPLER, -1)
REF_LOGPROB = plus(LOGPROB, REF, -1)
TOKENS = [len(row) for row in OLD]
PLACES = [(i, t) for i, row in enumerate(OLD) for t in range(len(row))]


def clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


# ------------------------------------------------------------------ the frameworks, as they compute


@dataclass(frozen=True)
class Framework:
    """The constants of a framework's row in docs/compat.md."""

    advantage: Callable[[], Rows]
    clamp: float
    """Bound of the log-ratio; inf: none."""
    dual_clip: float | None = None
    weights: str = "tokens"
    """Whether every token counts alike, or every row."""
    old: str = "trainer"
    """Whose log-probs the ratio divides by."""
    kl: float = 0.0
    """Coefficient of k3 in the loss, bounded by 20 and 10."""
    sequence_mask: float = math.inf
    trust_region: float | None = None


def of_groups(
    score: Callable[[float, list[float], list[float]], float],
) -> Callable[[], Rows]:
    """Returns each row's ``score(its reward, the group's, the others')``, copied to its tokens."""

    def advantage() -> Rows:
        rows = []
        for i, reward in enumerate(REWARD):
            group = [r for r, g in zip(REWARD, GROUP, strict=True) if g == GROUP[i]]
            others = [r for j, r in enumerate(REWARD) if GROUP[j] == GROUP[i] and j != i]
            rows.append([score(reward, group, others)] * TOKENS[i])
        return rows

    return advantage


def normalised(eps: float) -> Callable[[], Rows]:
    return of_groups(lambda r, group, _: (r - statistics.mean(group)) / (statistics.stdev(group) + eps))


MEAN_ONLY = of_groups(lambda r, group, _: r - statistics.mean(group))
LEAVE_ONE_OUT = of_groups(
    lambda r, _, others: (r - statistics.mean(others)) / (statistics.stdev(others) + 1e-6)
)


def openrlhf() -> Rows:
    """Returns whitened rewards-to-go with 0.01 k1 in the reward, k1 within 10; population variance."""
    to_go = []
    for i, row in enumerate(OLD):
        rewards = [-0.01 * clip(old - ref, -10, 10) for old, ref in zip(row, REF_LOGPROB[i], strict=True)]
        rewards[-1] += REWARD[i]
        to_go.append([sum(rewards[t:]) for t in range(len(row))])
    flat = [x for row in to_go for x in row]
    mean, variance = statistics.mean(flat), statistics.pvariance(flat)
    return [[(x - mean) / math.sqrt(max(variance, 1e-8)) for x in row] for row in to_go]


FRAMEWORKS = {
    "verl_grpo": Framework(normalised(1e-6), clamp=20, dual_clip=3.0),
    "trl_grpo": Framework(normalised(1e-4), clamp=math.inf, sequence_mask=3.0),
    "openrlhf_reinforce_plus_plus": Framework(openrlhf, clamp=20),
    "nemo_rl_grpo": Framework(LEAVE_ONE_OUT, clamp=math.inf, kl=0.01),
    "skyrl_grpo": Framework(normalised(1e-6), clamp=20, kl=0.001),
    "areal_grpo": Framework(normalised(1e-5), clamp=math.inf),
    "slime_grpo": Framework(normalised(1e-6), clamp=math.inf, weights="rows"),
    "torchtitan_rl": Framework(MEAN_ONLY, clamp=10, old="sampler"),
    "prime_rl": Framework(MEAN_ONLY, clamp=math.inf, old="sampler", trust_region=0.2),
}
POPULATION = {"openrlhf_reinforce_plus_plus": math.sqrt(sum(TOKENS) / (sum(TOKENS) - 1))}
"""Whose advantages are larger than titanrl's by a factor that no field sets."""


def token_loss(one: Framework, logprob: float, old: float, advantage: float) -> float:
    ratio = math.exp(clip(logprob - old, -one.clamp, one.clamp))
    if one.trust_region is not None:
        moved = math.exp(logprob) - math.exp(old)
        inside = moved <= one.trust_region if advantage > 0 else moved >= -one.trust_region
        return -ratio * advantage if inside else 0.0
    loss = max(-ratio * advantage, -clip(ratio, 0.8, 1.2) * advantage)
    if one.dual_clip is not None and advantage < 0:
        loss = min(loss, -one.dual_clip * advantage)
    return loss


def terms(one: Framework, advantage: Rows, i: int, t: int, logprob: float) -> tuple[float, float]:
    """Returns what token t of row i adds to the total, by the loss and by the KL, if its log-prob is this."""
    weight = 1 / sum(TOKENS) if one.weights == "tokens" else 1 / (len(TOKENS) * TOKENS[i])
    product = math.exp(sum(SAMPLER[i]))
    correction = 1.0 if one.sequence_mask == math.inf else product * (product <= one.sequence_mask)
    d = clip(logprob - REF_LOGPROB[i][t], -20, 20)
    k3 = clip(math.exp(-d) - 1 + d, -10, 10)
    loss = token_loss(one, logprob, old_logprob(one, i, t), advantage[i][t])
    return weight * correction * loss, weight * one.kl * k3


def old_logprob(one: Framework, i: int, t: int) -> float:
    return OLD[i][t] if one.old == "trainer" else SAMPLER_LOGPROB[i][t]


def total(one: Framework, advantage: Rows) -> float:
    return sum(sum(terms(one, advantage, i, t, LOGPROB[i][t])) for i, t in PLACES)


def gradient(one: Framework, advantage: Rows) -> list[float]:
    """Returns the derivative of the total with respect to every log-prob, by central differences."""
    step, found = 1e-6, []
    for i, t in PLACES:
        above, below = (terms(one, advantage, i, t, LOGPROB[i][t] + move) for move in (step, -step))
        # Each term by itself: beside a loss of 1e8 the KL would drown in rounding.
        found.append(sum((high - low) / (2 * step) for high, low in zip(above, below, strict=True)))
    return found


# ------------------------------------------------------------------ titanrl, from the preset's file


def algorithm_of(preset: str, folder: Path, *overrides: str) -> Algorithm:
    file = folder / "experiment.toml"
    file.write_text(EXPERIMENT.format(base=FOLDER / f"{preset}.toml"))
    return load(file, overrides).algorithm


def padded(rows: Rows, filler: float = math.nan) -> torch.Tensor:
    return torch.tensor([[*row, *[filler] * (max(TOKENS) - len(row))] for row in rows], dtype=torch.float32)


def batch_of(algorithm: Algorithm) -> TensorDict:
    mask = ~padded(OLD).isnan()
    sampler = padded(SAMPLER_LOGPROB)
    entries = {
        "loss_mask": mask,
        "group_id": torch.tensor(GROUP),
        "reward": torch.tensor(REWARD),
        "finish_reason": torch.zeros(len(GROUP), dtype=torch.int8),
        "sampler_logprob": sampler,
        "old_logprob": sampler if algorithm.old_logprob == "sampler" else padded(OLD),
        "ref_logprob": padded(REF_LOGPROB),
    }
    return TensorDict(entries, batch_size=[len(GROUP)])


def check(preset: str, algorithm: Algorithm) -> None:
    """Fails unless the algorithm computes what the framework does."""
    one = FRAMEWORKS[preset]
    batch, _ = compute_advantages(batch_of(algorithm), algorithm)
    mask, expected = batch["loss_mask"], one.advantage()
    got = batch["advantage"].double() * POPULATION.get(preset, 1.0)
    torch.testing.assert_close(got[mask], padded(expected).double()[mask], rtol=1e-6, atol=1e-7)

    batch["advantage"] = torch.where(mask, padded(expected), 0.0)
    kl = algorithm.kl_in_loss
    objective = Objective(loss=algorithm.loss, kl=None if kl is None else kl.estimator)
    coefficients = torch.tensor([0.0 if kl is None else kl.controller.coefficient, 0.0])
    logprob = padded(LOGPROB).double().requires_grad_()
    value, _ = objective(PolicyOutputs(logprob=logprob), compute_loss_weights(batch, algorithm), coefficients)
    if (
        one.trust_region is None
    ):  # dppo_tv has another value with the same gradient, for ratios within exp(20)
        assert float(value.detach()) == pytest.approx(total(one, expected), rel=1e-6)
    (found,) = torch.autograd.grad(value, logprob)
    pairs = zip(PLACES, found[mask].tolist(), gradient(one, expected), strict=True)
    for (i, t), ours, theirs in pairs:
        if one.trust_region is None or abs(LOGPROB[i][t] - old_logprob(one, i, t)) <= 20:
            assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-8), (i, t)


@pytest.mark.parametrize("preset", FRAMEWORKS)
def test_preset_computes_what_the_framework_computes(preset: str, tmp_path: Path) -> None:
    check(preset, algorithm_of(preset, tmp_path))


@pytest.mark.parametrize(
    ("preset", "override"),
    [
        ("verl_grpo", "loss.dual_clip="),
        ("verl_grpo", "advantage.eps=1e-4"),
        ("verl_grpo", "aggregation.name=sequence_mean"),
        ("trl_grpo", "advantage.eps=1e-6"),
        ("trl_grpo", "loss.log_ratio_clamp=20.0"),
        ("trl_grpo", "correction.0.high=inf"),
        ("trl_grpo", "correction.0.level=token"),
        ("openrlhf_reinforce_plus_plus", "kl.output_clamp=inf"),
        ("openrlhf_reinforce_plus_plus", "kl.coefficient=0.02"),
        ("openrlhf_reinforce_plus_plus", "loss.log_ratio_clamp=88.0"),
        ("nemo_rl_grpo", "advantage.baseline=mean"),
        ("nemo_rl_grpo", "advantage.std=group"),
        ("nemo_rl_grpo", "kl.output_clamp=inf"),
        ("nemo_rl_grpo", "loss.log_ratio_clamp=20.0"),
        ("skyrl_grpo", "kl.coefficient=0.01"),
        ("skyrl_grpo", "kl.output_clamp=inf"),
        ("skyrl_grpo", "loss.log_ratio_clamp=88.0"),
        ("areal_grpo", "advantage.eps=1e-6"),
        ("areal_grpo", "loss.log_ratio_clamp=20.0"),
        ("slime_grpo", "aggregation.name=token_mean"),
        ("slime_grpo", "loss.log_ratio_clamp=20.0"),
        ("torchtitan_rl", "advantage.std=group"),
        ("torchtitan_rl", "loss.log_ratio_clamp=20.0"),
        ("torchtitan_rl", "old_logprob=recompute"),
        ("prime_rl", "loss.low=0.4"),
        ("prime_rl", "loss.high=0.3"),
        ("prime_rl", "loss.ratio_cap=20.0"),
        ("prime_rl", "old_logprob=recompute"),
    ],
)
def test_each_constant_of_a_preset_is_needed(preset: str, override: str, tmp_path: Path) -> None:
    changed = algorithm_of(preset, tmp_path, f"algorithm.{override}")
    with pytest.raises(AssertionError):
        check(preset, changed)


def test_every_preset_is_tested_and_on_the_page() -> None:
    presets = {path.stem for path in FOLDER.glob("*.toml")}
    assert presets == set(FRAMEWORKS)
    page = (ROOT / "docs" / "compat.md").read_text()
    assert [preset for preset in presets if f"`{preset}`" not in page] == []
