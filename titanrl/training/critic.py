"""The critic's part of a step: values of the answers before the update, and its own update."""

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
    """Returns ``value`` [N, L] float32, 0 where masked: of the state in which each trained label comes.

    Args:
        critic: the value model, or the policy with the critic's head, which is asked for more in one pass.
        batch: this rank's N rows.
        keys: with ``final_value`` among them, also return [N] the value of the state after the last response
            token, 0 on a fully masked row; one more token per row is computed.
    """
    outputs = tuple(dict.fromkeys(["value", *(key for key in keys if key != "final_value")]))
    if "final_value" not in keys:
        return critic.score(batch, outputs)
    mask = batch["loss_mask"]
    is_last, is_after = is_last_loss_token(mask), after_last_loss_token(mask)
    input_ids, labels, longer = (
        torch.nn.functional.pad(batch[key], (0, 1)) for key in ("input_ids", "labels", "loss_mask")
    )
    input_ids[is_after] = batch["labels"][is_last]
    rows = {"input_ids": input_ids, "labels": labels, "loss_mask": longer | is_after}
    rows["group_id"] = batch["group_id"]
    found = critic.score(TensorDict(rows, batch_size=batch.batch_size), outputs)
    final = masked_sum(found["value"], is_after, -1)
    return {key: where0(mask, each[:, :-1]) for key, each in found.items()} | {"final_value": final}


def update_critic(critic: Learner, rows: TensorDict, objective: Objective) -> Sums:
    """Makes one optimizer step of the critic and returns its metrics as ``critic/...``.

    Corrections weigh the policy's loss alone, not this regression; the tokens and their weights are the same.

    Args:
        rows: this rank's share of the minibatch, as the policy gets it.
    """
    found = critic.update(rows.exclude("correction_weight"), objective, (0.0, 0.0))
    quantities = {name.partition("/")[2]: sums for name, sums in found.items()}
    return {f"critic/{RENAMED.get(name, name)}": sums for name, sums in quantities.items()}
