"""Model sources and what a model folder must hold; importing this reads no weight and no framework."""

from titanrl.models.folder import ModelInfo, inspect, vocabulary
from titanrl.models.sources import get, import_model

__all__ = ["ModelInfo", "get", "import_model", "inspect", "vocabulary"]
