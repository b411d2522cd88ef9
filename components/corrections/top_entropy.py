"""Only the tokens at which the policy is least certain are trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from titanrl.errors import check_range
from titanrl.ops.masked import where0
from titanrl.ops.mismatch import correction_result
from titanrl.ops.quantile import quantile
from titanrl.registry import register

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import CorrectionResult


@register("correction", "top_entropy")
@dataclass(frozen=True, slots=True, kw_only=True)
class TopEntropy:
    """Returns weight 1 and keep where ``old_entropy >= quantile(1 - fraction)``, [N, L].

    The quantile is that of the trainable tokens of the whole batch, linearly interpolated.
    Elsewhere 0 and false.

    Source: the 80/20 rule, 2506.01939.
    """

    fraction: float = 0.2
    """Share of the tokens that is kept, in (0, 1]; more where entropies tie."""
    in_keys: ClassVar[tuple[str, ...]] = ("old_entropy",)

    def __post_init__(self) -> None:
        check_range(self, "fraction", "(0, 1]")

    def __call__(self, batch: TensorDict) -> CorrectionResult:
        mask, entropy = batch["loss_mask"], batch["old_entropy"]
        threshold = quantile(entropy[mask], 1 - self.fraction)
        return correction_result(mask, mask, where0(mask, entropy).double() >= threshold)
