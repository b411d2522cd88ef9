"""A model on the mesh: its parts on this rank, its configuration and its pipeline stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch
from torch.distributed.fsdp import FSDPModule
from torchtitan.models.common.decoder import Decoder
from torchtitan.protocols.state_dict_adapter import StateDictAdapter

from titanrl.engine.heads.token import Head
from titanrl.models.hf_config import HFConfig

__all__ = ["Model"]


@dataclass(slots=True)
class Model:
    """A model on the mesh. Its parts are this rank's pipeline stages; one without pipeline parallelism."""

    parts: list[Decoder]
    adapter: StateDictAdapter
    config: HFConfig
    tied: bool
    """Whether head and embedding are one parameter; both ends of a pipeline hold a copy."""
    heads: Mapping[str, float]
    """Names and weights of scalar heads if there are several."""
    is_value_model: bool
    """Whether the head is scalar, on whichever pipeline stage it is."""
    folder: str
    stages: list[Any] = field(default_factory=list)
    """Torch's wrappers of the parts as pipeline stages; empty without pipeline parallelism."""
    schedule_name: str = ""
    schedule: Any = None
    """The pipeline schedule last used."""
    schedule_sizes: tuple[int, int] = (0, 0)
    """Number and length of the micro-batches that the schedule was built for."""
    is_first: bool = True
    """Whether this rank holds the embedding."""
    is_last: bool = True
    """Whether this rank holds the head."""

    @property
    def head(self) -> Head:
        """The lm_head or scalar head, on the rank of the last stage."""
        head = self.parts[-1].lm_head
        assert isinstance(head, Head)
        return head

    @property
    def inner_attention(self) -> Any:
        """Config of the attention inside every layer."""
        return self.parts[0].config.first_attention.inner_attention

    def fsdp_modules(self) -> list[FSDPModule]:
        """Returns the modules that FSDP2 wraps."""
        return [module for part in self.parts for module in part.modules() if isinstance(module, FSDPModule)]

    def parameters(self) -> list[torch.nn.Parameter]:
        """Returns the parameters of this rank's parts."""
        return [parameter for part in self.parts for parameter in part.parameters()]
