"""Finish-reason mask: drops rows that ended for the given reasons from the loss."""

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
    """Selection of rows by finish reason, [N, L]: other rows get weight 1 and are kept.

    Dropped rows are removed from loss_mask, so that the denominators, the KL and the entropy term do not see
    them. They still count in group statistics.

    Source: overlong filtering, DAPO 2503.14476 section 3.4.
    """

    drop: tuple[Literal["stop", "length", "abort"], ...] = ("length",)
    """Finish reasons to drop: stop (end token), length (token limit), abort."""
    in_keys: ClassVar[tuple[str, ...]] = ("finish_reason",)
    selects: ClassVar[bool] = True

    def __call__(self, batch: TensorDict) -> CorrectionResult:
        mask, reason = batch["loss_mask"], batch["finish_reason"]
        keep = torch.ones_like(reason, dtype=torch.bool)
        for name in self.drop:
            keep = keep & (reason != Reason[name.upper()])
        return correction_result(mask, mask, keep.unsqueeze(-1))
