"""No correction: every trainable token counts as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from titanrl.ops.mismatch import correction_result
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import CorrectionResult


@register("correction", "none")
@dataclass(frozen=True, slots=True, kw_only=True)
class NoCorrection:
    """Returns weight 1 and keep on every trainable token, [N, L]; 0 and false where masked.

    Reads no log-probs, so tokens without a finite one stay.
    """

    in_keys: ClassVar[tuple[str, ...]] = ()

    def __call__(self, batch: TensorDict) -> CorrectionResult:
        mask = batch["loss_mask"]
        return correction_result(mask, mask, mask)
