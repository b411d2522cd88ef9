"""Export of a run's weights to a Hugging Face folder, compared by value."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from titanrl.config import dumps, load
from titanrl.engine import Engine, EngineConfig, init_distributed
from titanrl.engine.export import export_run
from titanrl.errors import ConfigError
from titanrl.models.tiny import create

EXPERIMENT = Path(__file__).parents[3] / "experiments" / "tiny_grpo.toml"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder without checkpoints."""
    model = create(tmp_path / "model")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "experiment.toml").write_text(dumps(load(EXPERIMENT, [f"model.path={model}"])))
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return {name: value.detach() for name, value in model.named_parameters()}


def test_export_holds_the_newest_checkpoints_weights(run: Path, tmp_path: Path) -> None:
    init_distributed()
    experiment = load(run / "experiment.toml")
    engine = Engine(EngineConfig.of(experiment), checkpoints=run / "checkpoints")
    for step in (1, 2):
        with torch.no_grad():
            for module in engine.modules:
                for value in module.parameters():
                    value.add_(0.25)
        engine.save(step, last=True)
    engine.close()
    assert export_run(run, tmp_path / "out") == tmp_path / "out"
    before, after = weights(Path(experiment.model.path)), weights(tmp_path / "out")
    assert before.keys() == after.keys()
    for name, value in before.items():
        torch.testing.assert_close(after[name], value + 0.5, rtol=0, atol=1e-6)


def test_export_without_checkpoint_run_or_free_folder_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no complete checkpoint"):
        export_run(run, tmp_path / "out")
    (run / "checkpoints" / "step-2").mkdir(parents=True)
    (run / "checkpoints" / "step-2" / "__0_0.distcp").touch()
    with pytest.raises(ConfigError, match="holds no complete checkpoint"):
        export_run(run, tmp_path / "out")
    (run / "checkpoints" / "step-2" / ".metadata").touch()
    with pytest.raises(ConfigError, match="--output must name a new folder"):
        export_run(run, tmp_path)
    with pytest.raises(ConfigError, match="trained no critic; drop --critic"):
        export_run(run, tmp_path / "out", critic=True)
    critic = ["algorithm.advantage={name='gae'}", "critic={shared=true}"]
    shared = dumps(load(run / "experiment.toml", critic))
    (run / "experiment.toml").write_text(shared)
    with pytest.raises(ConfigError, match=r"a head on the policy's backbone \(\[critic\] shared = true\)"):
        export_run(run, tmp_path / "out", critic=True)
    with pytest.raises(ConfigError, match="is no run folder"):
        export_run(tmp_path, tmp_path / "out")
