"""titanrl: a composable research framework for LLM post-training on TorchTitan."""

from titanrl.decode import build
from titanrl.errors import ConfigError, SchemaError
from titanrl.protocols import Advantages, CorrectionResult, PolicyOutputs, Prompt, TokenLoss
from titanrl.registry import names, register

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
