"""Critics and reward models on disk: new heads, resumed critics, unsupported weights."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import titanrl
from tests.unit.engine.conftest import make_batch
from titanrl.algorithm.objective import Objective
from titanrl.config.engine_tables import Checkpoint, Optimizer
from titanrl.engine import Engine
from titanrl.engine.settings import CriticModel
from titanrl.errors import ConfigError
from titanrl.models import tiny

Make = Callable[..., Engine]
REGRESSION = Objective(loss=titanrl.build("loss", {"name": "value"}))
ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_new_value_head_has_the_hidden_size_and_is_zero_for_every_seed(
    tmp_path: Path, make_engine: Make
) -> None:
    folder = tiny.create(tmp_path / "model", hidden=8, heads=2)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"word_embed_proj_dim": 4, "n_embd": 4}))
    heads = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        engine = make_engine(model=str(folder), head="value")
        heads.append(dict(engine.weights())["score.weight"])
        assert not engine.score(make_batch(), ("value",))["value"].any()
    assert heads[0].shape == (1, 8)
    assert not any(head.any() for head in heads)


def start(make_engine: Make, folder: Path) -> Engine:
    critic = CriticModel(path=str(folder / "critic"), optimizer=Optimizer(lr=1e-2), steps=9)
    table = Checkpoint(interval=1, keep_latest_k=0)
    return make_engine(critic=critic, checkpoints=folder / "checkpoints", checkpoint=table)


def step(engine: Engine, seed: int) -> torch.Tensor:
    """Return the critic's values after one more of its updates."""
    assert engine.critic is not None
    batch = make_batch(seed)
    batch["returns"] = batch["advantage"]
    batch["value"] = engine.critic.score(batch, ("value",))["value"]
    engine.critic.update(batch, REGRESSION, (0.0, 0.0))
    return engine.critic.score(batch, ("value",))["value"]


RESUME = """
import sys
from pathlib import Path
import torch
from tests.unit.engine.conftest import LENGTH
from tests.unit.engine.test_value_model_files import start, step
from titanrl.config.engine_tables import Optimizer, Training
from titanrl.engine import Engine, EngineConfig

folder = Path(sys.argv[1])
torch.set_num_threads(1)
training = Training(seq_len=LENGTH + 8, max_tokens_per_microbatch=120, mixed_precision_param="float32")

def make(checkpoints, **changes):
    optimizer = Optimizer(lr=1e-2)
    config = EngineConfig(model=sys.argv[2], steps=20, optimizer=optimizer, training=training, **changes)
    return Engine(config, checkpoints=checkpoints)

engine = start(make, folder)
assert engine.load()
torch.save([step(engine, 2), step(engine, 3)], folder / "resumed.pt")
"""


@pytest.mark.slow
def test_resumed_critic_continues_bitwise_in_a_new_process(
    tmp_path: Path, make_engine: Make, model_folder: Path
) -> None:
    """Reported as NeMo-RL #3171: the critic's optimizer state was lost on resume."""
    tiny.create(tmp_path / "critic", head="value", scale=0.2, seed=1)
    engine = start(make_engine, tmp_path)
    before = [step(engine, seed) for seed in (0, 1)]
    engine.save(2)
    whole = [step(engine, seed) for seed in (2, 3)]
    engine.close()
    assert not torch.equal(before[0], before[1])
    done = subprocess.run(
        [sys.executable, "-c", RESUME, str(tmp_path), str(model_folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for resumed, uninterrupted in zip(torch.load(tmp_path / "resumed.pt"), whole, strict=True):
        assert torch.equal(resumed, uninterrupted)


@pytest.mark.parametrize("name", ["mean", "score.bias", "v_head.weight"])
def test_value_model_refuses_weights_that_it_would_ignore(
    tmp_path: Path, make_engine: Make, name: str
) -> None:
    folder = tiny.create(tmp_path / "reward", head="value")
    weights = load_file(folder / "model.safetensors") | {name: torch.tensor([2.0])}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=f"got {name} too, which would be ignored"):
        make_engine(model=str(folder), head="value")
