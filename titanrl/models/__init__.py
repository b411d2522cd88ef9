"""Model families, model folders and their sources; importing this loads no weights and no framework."""

from titanrl.models.folder import ModelInfo, inspect, vocabulary
from titanrl.models.sources import get, import_model

__all__ = ["ModelInfo", "get", "import_model", "inspect", "vocabulary"]
