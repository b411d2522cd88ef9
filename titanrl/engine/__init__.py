"""The training engine. With titanrl.models it is the only importer of TorchTitan.

- ``engine``: the models of a run and their checkpoints: score, update, stream, export, save, load.
- ``settings``: what an engine computes; ``mesh``: process group, device, threads and device mesh.
- ``build``: builds a model from a Hugging Face folder; ``model``: its parts, head and pipeline stages.
- ``allocate``: memory of a model built on the meta device; ``attention``: attention of packed sequences.
- ``heads``: log-probs of queried tokens, values, and both on one backbone.
- ``packing``: rows to micro-batches; ``bins``: bin packing; ``pipeline``: micro-batches through stages.
- ``scoring_model``: a model with its forward pass; ``lazy_reference``: shares the policy's weights at first.
- ``learner``: a scoring model with its ``optimizer``s and schedule; ``update``: one optimizer step.
- ``weights``: loading, gathering, streaming, exporting, tying across pipeline stages.
- ``checkpoint``: saves and restores a run; ``manifest``: hashes of its files; ``best``: the best one.
- ``checkpoint_reader``: reads without running code; ``rank_state``: state per rank, on any mesh.
- ``restore``: chooses a whole checkpoint and loads its weights; ``export``: writes a folder.
- ``collectives``: the global batch and objects between ranks; ``reduce``: sums of metrics.
- ``host_memory``: how glibc handles freed memory.
"""

from __future__ import annotations

from titanrl.engine.engine import Engine
from titanrl.engine.mesh import init_distributed, set_threads
from titanrl.engine.restore import has_checkpoint
from titanrl.engine.settings import EngineConfig

__all__ = ["Engine", "EngineConfig", "has_checkpoint", "init_distributed", "set_threads"]
