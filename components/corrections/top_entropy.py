"""Top-entropy mask: keeps only the tokens of highest entropy in the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from titanrl.ops.masked import where0
from titanrl.ops.mismatch import correction_result
from titanrl.ops.quantile import quantile
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import CorrectionResult


@register("correction", "top_entropy")
@dataclass(frozen=True, slots=True, kw_only=True)
class TopEntropy:
    """Mask that keeps tokens with ``old_entropy >= quantile(1 - fraction)``, [N, L].

    Kept tokens get weight 1. The quantile is taken over the loss tokens of the batch, with linear
    interpolation.

    Source: the 80/20 rule, 2506.01939.
    """

    fraction: Annotated[float, Range("(0, 1]")] = 0.2
    """Fraction of the tokens to keep; more are kept where entropies tie."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_entropy",)

    def __call__(self, batch: TensorDict) -> CorrectionResult:
        mask, entropy = batch["loss_mask"], batch["old_entropy"]
        threshold = quantile(entropy[mask], 1 - self.fraction)
        return correction_result(mask, mask, where0(mask, entropy).double() >= threshold)
