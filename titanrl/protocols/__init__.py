"""Contracts between components, engine and training loop; this package contains no behaviour."""

from __future__ import annotations

from titanrl.protocols.batch import register_key
from titanrl.protocols.components import (
    AdvantageEstimator,
    Advantages,
    Aggregation,
    Correction,
    CorrectionResult,
    Filter,
    KLController,
    KLEstimator,
    PolicyLoss,
    PolicyOutputs,
    RewardFunction,
    Stateful,
    TokenLoss,
)
from titanrl.protocols.rollout import (
    Completion,
    FinishReason,
    RolloutRequest,
    Sampler,
    SamplerContext,
    SamplerSettings,
    temperature_at,
)
from titanrl.protocols.sources import (
    DataSettings,
    DataSource,
    Example,
    Messages,
    ProcessStep,
    Prompt,
    PromptSource,
    SourceSettings,
)
from titanrl.protocols.stream import StreamEvent, StreamRequest, TokenStream

__all__ = [
    "AdvantageEstimator",
    "Advantages",
    "Aggregation",
    "Completion",
    "Correction",
    "CorrectionResult",
    "DataSettings",
    "DataSource",
    "Example",
    "Filter",
    "FinishReason",
    "KLController",
    "KLEstimator",
    "Messages",
    "PolicyLoss",
    "PolicyOutputs",
    "ProcessStep",
    "Prompt",
    "PromptSource",
    "RewardFunction",
    "RolloutRequest",
    "Sampler",
    "SamplerContext",
    "SamplerSettings",
    "SourceSettings",
    "Stateful",
    "StreamEvent",
    "StreamRequest",
    "TokenLoss",
    "TokenStream",
    "register_key",
    "temperature_at",
]
