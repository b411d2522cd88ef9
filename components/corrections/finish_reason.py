"""Rows that ended for given reasons are left out of the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from titanrl.ops.mismatch import correction_result
from titanrl.protocols import FinishReason as Reason
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import CorrectionResult


@register("correction", "finish_reason")
@dataclass(frozen=True, slots=True, kw_only=True)
class FinishReason:
    """Returns weight 1 and keep on rows of another finish_reason, [N, L]; 0 and false elsewhere.

    They leave the loss only: group statistics still contain them.

    Source: overlong filtering, DAPO 2503.14476 section 3.4.
    """

    drop: tuple[Literal["stop", "length", "abort"], ...] = ("length",)
    """Reasons whose rows are dropped: own end, token limit, aborted."""
    in_keys: ClassVar[tuple[str, ...]] = ("finish_reason",)

    def __call__(self, batch: TensorDict) -> CorrectionResult:
        mask, reason = batch["loss_mask"], batch["finish_reason"]
        keep = torch.ones_like(reason, dtype=torch.bool)
        for name in self.drop:
            keep = keep & (reason != Reason[name.upper()])
        return correction_result(mask, mask, keep.unsqueeze(-1))
