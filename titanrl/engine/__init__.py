"""The only importer of TorchTitan beside titanrl.models: mesh, model, update, weights, checkpoints."""

from __future__ import annotations

from titanrl.engine.checkpoint import has_checkpoint
from titanrl.engine.engine import Engine
from titanrl.engine.mesh import init_distributed, set_threads
from titanrl.engine.settings import EngineConfig

__all__ = ["Engine", "EngineConfig", "has_checkpoint", "set_threads", "init_distributed"]
