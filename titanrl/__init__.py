"""titanrl: a composable research framework for LLM post-training on TorchTitan."""

from titanrl.errors import ConfigError, SchemaError
from titanrl.protocols import Advantages, CorrectionResult, PolicyOutputs, Prompt, TokenLoss
from titanrl.registry import names, register
from titanrl.registry.decode import build

__all__ = [
    "Advantages",
    "ConfigError",
    "CorrectionResult",
    "PolicyOutputs",
    "Prompt",
    "SchemaError",
    "TokenLoss",
    "build",
    "names",
    "register",
]
__version__ = "0.1.0"
