"""No correction."""

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
    """Weight 1 on every loss token, none dropped, [N, L].

    It reads no log-probs, so tokens without a finite log-prob are kept too.
    """

    in_keys: ClassVar[tuple[str, ...]] = ()

    def __call__(self, batch: TensorDict) -> CorrectionResult:
        mask = batch["loss_mask"]
        return correction_result(mask, mask, mask)
