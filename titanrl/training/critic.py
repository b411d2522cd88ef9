"""The critic's part of a step: values of the responses before the update, and the critic's update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict

from titanrl.algorithm.metrics import Sums
from titanrl.ops.masked import masked_sum, where0
from titanrl.ops.sequence import after_last_loss_token, is_last_loss_token

if TYPE_CHECKING:
    from titanrl.algorithm.objective import Objective
    from titanrl.engine.learner import Learner

__all__ = ["critic_values", "update_critic"]

RENAMED = {"total": "loss"}


def critic_values(
    critic: Learner, batch: TensorDict, keys: Sequence[str] = ("value",)
) -> dict[str, torch.Tensor]:
    """Returns ``value`` [N, L] float32, the value of the state before each loss token, 0 where masked.

    Args:
        critic: the value model, or the policy with the critic's head, whose other outputs come from the same
            pass.
        batch: this rank's N rows.
        keys: outputs to compute. ``final_value`` [N] is the value of the state after the last loss token, 0
            on a fully masked row; it costs one more token per row.
    """
    outputs = tuple(dict.fromkeys(["value", *(key for key in keys if key != "final_value")]))
    if "final_value" not in keys:
        return critic.score(batch, outputs)
    mask = batch["loss_mask"]
    is_last, is_after = is_last_loss_token(mask), after_last_loss_token(mask)
    input_ids, labels, padded_mask = (
        torch.nn.functional.pad(batch[key], (0, 1)) for key in ("input_ids", "labels", "loss_mask")
    )
    input_ids[is_after] = batch["labels"][is_last]
    rows = {"input_ids": input_ids, "labels": labels, "loss_mask": padded_mask | is_after}
    rows["group_id"] = batch["group_id"]
    scored = critic.score(TensorDict(rows, batch_size=batch.batch_size), outputs)
    final = masked_sum(scored["value"], is_after, -1)
    return {key: where0(mask, each[:, :-1]) for key, each in scored.items()} | {"final_value": final}


def update_critic(critic: Learner, rows: TensorDict, objective: Objective) -> Sums:
    """Makes one optimizer step of the critic and returns its metrics as ``critic/...``.

    Loss tokens and loss weights are those of the policy's update, but corrections do not apply: they weight
    the policy loss only.

    Args:
        critic: the value model.
        rows: this rank's share of the minibatch, the same as for the policy.
        objective: the critic's objective.
    """
    metrics = critic.update(rows.exclude("correction_weight"), objective, (0.0, 0.0))
    quantities = {name.partition("/")[2]: sums for name, sums in metrics.items()}
    return {f"critic/{RENAMED.get(name, name)}": sums for name, sums in quantities.items()}
