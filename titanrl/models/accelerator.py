"""The device type of this machine, also for TorchTitan: import this before any module of torchtitan."""

from __future__ import annotations

import torch
import torch._utils

__all__ = ["computes_bfloat16", "device_type"]


def device_type() -> str:
    """Returns "cuda" where there is a GPU and "cpu" elsewhere."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def computes_bfloat16() -> bool:
    """Whether matrix products in bfloat16 are faster than in float32: on GPUs, and CPUs with bfloat16 units.

    A CPU without them emulates bfloat16, several times slower than float32.
    """
    return (
        torch.cuda.is_available()
        or torch.cpu._is_avx512_bf16_supported()
        or torch.cpu._is_amx_tile_supported()
    )


def _set_torchtitan_device() -> None:
    """Makes torchtitan 0.3.0, which assumes "cuda" everywhere, use "cpu"; it reads the device at import."""
    if torch.accelerator.is_available():
        return
    original = torch._utils._get_available_device_type
    torch._utils._get_available_device_type = lambda: "cpu"
    try:
        import torchtitan.tools.utils  # noqa: F401
    finally:
        torch._utils._get_available_device_type = original


_set_torchtitan_device()
