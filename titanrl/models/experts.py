"""Experts that compute in the configured precision."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch
from torch.distributed.tensor import DTensor
from torchtitan.models.common.moe import GroupedExperts

__all__ = ["PreciseExperts"]

# torchtitan 0.3.0 requests a router in float32, which CPU autocast does not support: the router computes in
# the precision of the model.
warnings.filterwarnings("ignore", message="In CPU autocast, but the target dtype is not supported")


class PreciseExperts(GroupedExperts):  # type: ignore[misc]  # torchtitan has no types
    """TorchTitan's experts, computed in the precision of their inputs.

    Those of torchtitan 0.3.0 always round inputs and weights to bfloat16.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):  # type: ignore[misc]
        pass

    # The argument names are TorchTitan's: its sharding specs match by them.
    def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
        """Returns [R, D] for tokens [R, D] sorted by expert.

        Args:
            x_RD: tokens.
            num_tokens_per_expert_E: number of tokens of each expert.
        """
        ends = num_tokens_per_expert_E.cumsum(0, dtype=torch.int32)
        gate, down, up = (
            _local(weight).to(x_RD.dtype).transpose(-2, -1)
            for weight in (self.w1_EFD, self.w2_EDF, self.w3_EFD)
        )
        hidden = torch.nn.functional.silu(self._grouped_mm(A=x_RD, B_t=gate, offs=ends))
        hidden = hidden * self._grouped_mm(A=x_RD, B_t=up, offs=ends)
        result: torch.Tensor = self._grouped_mm(A=hidden, B_t=down, offs=ends)
        return result


def _local(weight: Any) -> torch.Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight
