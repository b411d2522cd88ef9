"""The pure stages of a step, without an engine: rewards to advantages and corrections, masks to weights.

Every rank holds the same global batch and computes the same result. Inputs are never modified.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from titanrl.algorithm.pairs import to_preference_pairs
from titanrl.algorithm.rollouts import JoinedRollouts, join_rollouts
from titanrl.algorithm.token_rewards import add_token_rewards
from titanrl.errors import TrainingError
from titanrl.ops.groups import GroupScores
from titanrl.ops.masked import masked_mean, where0
from titanrl.ops.mismatch import correction_result
from titanrl.ops.sequence import is_last_loss_token
from titanrl.registry import declared, name_of

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.algorithm.reward_scaling import RewardScaling
    from titanrl.algorithm.table import Algorithm, KLTerm

__all__ = [
    "SelectedRows",
    "compute_advantages",
    "compute_loss_weights",
    "select_rows",
    "unscored_rows",
]


class SelectedRows(NamedTuple):
    """The rows of a batch that the filters select."""

    rows: TensorDict
    """The rows to train on; for losses on pairs, sampled rows arranged in pairs."""
    num_kept: int
    """Number of rollouts that pass the filters; rows, where each is a rollout."""


@torch.no_grad()
def select_rows(batch: TensorDict, algorithm: Algorithm) -> SelectedRows:
    """Returns the scored rows that pass the filters.

    Each filter sees the unfiltered batch, and a row must pass all filters. A rollout with several rows passes
    or fails as one. For losses on pairs, sampled rows are arranged in pairs: see ``to_preference_pairs``.

    Args:
        batch: N rows after stage `score`, in any order within a group.
        algorithm: the [algorithm] table.
    """
    if algorithm.filter:
        rollouts = _rollouts(batch, algorithm)
        seen = batch if rollouts is None else rollouts.batch
        passes = torch.stack([row_filter(seen) for row_filter in algorithm.filter]).all(0)
        batch = batch[passes if rollouts is None else rollouts.spread(passes)]
    if bool((unscored := unscored_rows(batch)).any()):
        batch = batch[~unscored]
    kept = _rollouts(batch, algorithm)
    num_kept = len(batch) if kept is None else len(kept.batch)
    if algorithm.pairs_responses and "reward" in batch:  # Offline data has its pairs already.
        batch = to_preference_pairs(batch)
    return SelectedRows(batch, num_kept)


def unscored_rows(batch: TensorDict) -> torch.Tensor:
    """Returns [N] bool, true where the reward is missing, or that of the greedy response."""
    missing = torch.zeros(len(batch), dtype=torch.bool)
    for key in ("reward", "baseline_reward"):
        if batch.get(key, None) is not None:
            missing |= batch[key].isnan()
    return missing


@torch.no_grad()
def compute_advantages(
    batch: TensorDict, algorithm: Algorithm, selected: SelectedRows | None = None
) -> tuple[TensorDict, dict[str, float]]:
    """Returns the selected rows with the keys of stage `estimate`, and metrics.

    The following steps run if a component reads their result or a table configures them: reward scaling;
    token_reward (the reward on the last loss token, minus the KL-in-reward); advantage (minus the
    KL-in-advantage) and returns; and the corrections, combined into correction_weight and keep. Tokens that a
    selecting correction drops leave loss_mask. A rollout with several rows counts once, as one row that holds
    the loss tokens of all its rows, unless the advantage compares turns.

    Args:
        batch: N rows after stage `score`, in any order within a group.
        algorithm: the [algorithm] table; its controllers hold the current coefficients.
        selected: what ``select_rows`` returns for this batch; None: it is computed here.

    Returns:
        A new batch, which may be empty, and metrics; a metric without values to average is absent.
    """
    selected = select_rows(batch, algorithm) if selected is None else selected
    rollouts = _rollouts(selected.rows, algorithm)
    if rollouts is not None:
        scored = _rollouts(batch, algorithm)
        assert scored is not None
        kept = SelectedRows(rollouts.batch, selected.num_kept)
        result, metrics = _compute(scored.batch, algorithm, kept)
        return rollouts.spread_into(selected.rows, result, _ESTIMATED_KEYS), metrics
    scored = _rollouts(batch, algorithm)
    return _compute(batch if scored is None else scored.batch, algorithm, selected)


_ESTIMATED_KEYS = (
    "loss_mask",
    "reward",
    "baseline_reward",
    "token_reward",
    "advantage",
    "returns",
    "correction_weight",
    "keep",
)
"""Keys that ``compute_advantages`` sets."""


def _rollouts(batch: TensorDict, algorithm: Algorithm) -> JoinedRollouts | None:
    """Returns the rollouts whose rows count as one; None if every row counts for itself."""
    return None if algorithm.compares_turns else join_rollouts(batch)


def _compute(
    batch: TensorDict, algorithm: Algorithm, selected: SelectedRows
) -> tuple[TensorDict, dict[str, float]]:
    """Returns the selected rows with the keys of stage `estimate`, and metrics; each row counts once."""
    metrics = _group_metrics(batch) if batch.get("reward", None) is not None else {}
    scaling = algorithm.reward_scaling
    if scaling is not None:
        scaling.update(batch["reward"])
    if algorithm.filter:
        metrics["filter/kept_fraction"] = torch.tensor(selected.num_kept / len(batch))
    if algorithm.pairs_responses and "reward" in batch:
        metrics["filter/pairs"] = torch.tensor(len(selected.rows) / 2)
    batch = selected.rows.copy()
    if scaling is not None:
        metrics |= _scale_rewards(batch, scaling)
    kl = algorithm.kl
    if kl is not None and kl.placement != "loss":
        log_ratio = where0(batch["loss_mask"], batch["old_logprob"] - batch["ref_logprob"])
        metrics["kl/value"] = masked_mean(log_ratio.double(), batch["loss_mask"])
        if kl.placement == "reward" and "reward" in batch:
            metrics["reward/kl_penalized"] = (
                (batch["reward"] - _penalty(batch, kl).sum(-1)).double().nanmean()
            )
    needs_token_reward = _reads_token_reward(algorithm) or (kl is not None and kl.placement == "reward")
    if needs_token_reward and "token_reward" not in batch:  # Offline data may contain it.
        scale = 1.0 if scaling is None or not scaling.divide else 1 / scaling.std
        batch["token_reward"] = _token_reward(batch, kl, scale)
    if algorithm.advantage is not None:
        metrics |= _set_advantage(batch, algorithm)
    if algorithm.old_logprob == "recompute":
        metrics |= _logprob_diff(batch)
    if algorithm.correction:
        metrics |= _drop_unselected(batch, algorithm) | _set_correction(batch, algorithm)
    scalars = {name: float(value) for name, value in metrics.items()}
    return batch, {name: value for name, value in scalars.items() if not math.isnan(value)}


@torch.no_grad()
def compute_loss_weights(minibatch: TensorDict, algorithm: Algorithm) -> TensorDict:
    """Returns the rows of one optimizer step with ``loss_weight``; every split gives the same sum.

    The aggregation counts all loss tokens or, with denominator = "kept", only those that the corrections
    keep; the dropped tokens then have weight 0 in every term. Tokens that a selection dropped are no loss
    tokens. ``correction_weight`` is a separate key: it multiplies the policy loss only.

    Args:
        minibatch: [N, L] all rows of the step, from every rank and micro-batch.
        algorithm: the [algorithm] table.
    """
    rollouts = _rollouts(minibatch, algorithm)
    rows = minibatch if rollouts is None else rollouts.batch
    mask = rows["loss_mask"]
    if algorithm.denominator == "kept":
        mask = mask & rows["keep"]
    weight = algorithm.aggregation(mask, rows["group_id"])
    if rollouts is not None:
        if declared(algorithm.loss, "couples_group") or declared(algorithm.loss, "couples_step"):
            raise TrainingError(
                f"loss {name_of(algorithm.loss)!r} compares whole responses, and a rollout of this step has "
                "several rows, because its chat template or its environment rewrites earlier turns; choose "
                "a loss per token, or a template that keeps earlier turns."
            )
        weight = rollouts.spread(weight)
    return minibatch.copy().set("loss_weight", weight)


def _reads_token_reward(algorithm: Algorithm) -> bool:
    readers = (algorithm.advantage, algorithm.loss)
    return any("token_reward" in declared(reader, "in_keys") for reader in readers)


def _penalty(batch: TensorDict, kl: KLTerm) -> torch.Tensor:
    """Returns [N, L] ``beta k(l_old, l_ref)``, 0 where masked."""
    assert kl.controller is not None
    mask = batch["loss_mask"]
    old, ref = where0(mask, batch["old_logprob"]), where0(mask, batch["ref_logprob"])
    penalty: torch.Tensor = kl.controller.coefficient * where0(mask, kl.estimator(old, ref))
    return penalty


def _token_reward(batch: TensorDict, kl: KLTerm | None, scale: float) -> torch.Tensor:
    """Returns [N, L] the reward of each token minus the KL-in-reward; 0 where masked.

    Per-token rewards are added at their positions; the last response token gets the rest of the reward.
    """
    reward = where0(is_last_loss_token(batch["loss_mask"]), batch["reward"].unsqueeze(-1))
    reward = add_token_rewards(reward, batch, scale)
    return reward - _penalty(batch, kl) if kl is not None and kl.placement == "reward" else reward


def _scale_rewards(batch: TensorDict, scaling: RewardScaling) -> dict[str, torch.Tensor]:
    for key in ("reward", "baseline_reward"):
        if key in batch:
            batch[key] = scaling(batch[key])
    is_clipped = (batch["reward"].abs() >= scaling.clip)[~batch["reward"].isnan()].double()
    return {"reward/scale": torch.tensor(scaling.std), "reward/clipped_fraction": is_clipped.mean()}


def _set_advantage(batch: TensorDict, algorithm: Algorithm) -> dict[str, torch.Tensor]:
    assert algorithm.advantage is not None
    advantage, returns = algorithm.advantage(batch)
    if algorithm.kl is not None and algorithm.kl.placement == "advantage":
        advantage = advantage - _penalty(batch, algorithm.kl)
    batch["advantage"] = advantage
    token_advantage = advantage[batch["loss_mask"]].double()
    metrics = {"advantage/mean": token_advantage.mean(), "advantage/abs_mean": token_advantage.abs().mean()}
    if returns is not None:
        batch["returns"] = returns
        if batch.get("value", None) is not None:
            mask = batch["loss_mask"]
            metrics["critic/explained_variance"] = _explained_variance(batch)
            metrics["critic/value_mean"] = batch["value"][mask].double().mean()
            metrics["critic/returns_mean"] = returns[mask].double().mean()
    return metrics


def _drop_unselected(batch: TensorDict, algorithm: Algorithm) -> dict[str, torch.Tensor]:
    """Removes the tokens that selecting corrections drop from loss_mask: no term of the loss sees them.

    A pair stays only if both of its rows do.

    Returns:
        The metric of the selection; empty without a selecting correction.
    """
    selecting = [each for each in algorithm.correction if declared(each, "selects")]
    if not selecting:
        return {}
    mask = batch["loss_mask"]
    selected = torch.stack([correction(batch).keep for correction in selecting]).all(0)
    if algorithm.pairs_responses:
        has_both = selected.any(-1).view(-1, 2).all(-1)
        selected = selected & has_both.repeat_interleave(2).unsqueeze(-1)
    batch["loss_mask"] = mask & selected
    for key in ("advantage", "returns"):
        if key in batch:
            batch[key] = where0(batch["loss_mask"], batch[key])
    return {"correction/selected_fraction": batch["loss_mask"].sum().double() / mask.sum()}


def _set_correction(batch: TensorDict, algorithm: Algorithm) -> dict[str, torch.Tensor]:
    """Sets the product of the corrections' weights and the conjunction of their keep masks.

    Returns:
        The metrics of the corrections.
    """
    mask = batch["loss_mask"]
    weight, keep = mask.float(), mask
    metrics: dict[str, torch.Tensor] = {}
    for correction in algorithm.correction:
        result = correction(batch)
        weight, keep = weight * result.weight, keep & result.keep
        metrics = result.metrics | metrics
    combined = correction_result(mask, weight, keep)
    batch["correction_weight"], batch["keep"] = combined.weight, combined.keep
    return {f"correction/{name}": value for name, value in (metrics | combined.metrics).items()}


def _group_metrics(batch: TensorDict) -> dict[str, torch.Tensor]:
    """Returns the share of groups with equal rewards and the mean within-group std, before any filter."""
    groups = GroupScores.of(batch["reward"], batch["group_id"])
    share = torch.where(groups.scored, 1 / groups.count.clamp_min(1), 0.0)
    num_groups = share.sum()
    return {
        "advantage/frac_zero_std": (share * ~groups.comparable).sum() / num_groups,
        "reward/group_std": (share * groups.std()).sum() / num_groups,
    }


def _explained_variance(batch: TensorDict) -> torch.Tensor:
    """Returns ``1 - Var(R - V) / Var(R)`` over the loss tokens; NaN if all returns are equal."""
    mask = batch["loss_mask"]
    returns, value = batch["returns"][mask].double(), batch["value"][mask].double()
    if len(returns) < 2 or bool((returns == returns[0]).all()):
        return torch.tensor(torch.nan)
    explained: torch.Tensor = 1 - (returns - value).var() / returns.var()
    return explained


def _logprob_diff(batch: TensorDict) -> dict[str, torch.Tensor]:
    """Returns the mean absolute difference of trainer and rollout log-probs, where both are finite.

    Tokens sampled by older weights have a metric of their own, because there the two policies differ anyway.
    """
    if not {"old_logprob", "sampler_logprob"} <= set(batch.keys()):
        return {}
    difference = (batch["old_logprob"] - batch["sampler_logprob"]).double().abs()
    counted = batch["loss_mask"] & difference.isfinite()
    if not {"policy_version_token", "current_version"} <= set(batch.keys()):
        return {"sample/logprob_diff": difference[counted].mean()}
    age = batch["current_version"].unsqueeze(-1) - batch["policy_version_token"]
    return {
        "sample/logprob_diff": difference[counted & (age == 0)].mean(),
        "sample/stale_logprob_diff": difference[counted & (age != 0)].mean(),
    }
