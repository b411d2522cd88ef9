"""Export of a run's weights to a Hugging Face folder, compared by value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from titanrl.config import dumps, load
from titanrl.engine import Engine, EngineConfig, init_distributed
from titanrl.engine.export import export_run
from titanrl.errors import ConfigError
from titanrl.models.stored import source_dtype
from titanrl.models.tiny import create

pytestmark = pytest.mark.slow

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


def save_one(run: Path) -> None:
    """Writes a checkpoint of step 1 with the model's own weights."""
    init_distributed()
    engine = Engine(EngineConfig.of(load(run / "experiment.toml")), checkpoints=run / "checkpoints")
    engine.save(1, last=True)
    engine.close()


def set_source(run: Path, dtype: torch.dtype) -> Path:
    """Gives the run's model folder another precision, and files that are no part of an export."""
    folder = Path(load(run / "experiment.toml").model.path)
    tensors = {name: each.to(dtype) for name, each in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": str(dtype).removeprefix("torch.")}))
    (folder / "pytorch_model.bin").write_bytes(b"weights of before")
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 1], "top_k": 20}')
    return folder


def test_export_has_the_dtype_of_the_source_and_its_generation_config(run: Path, tmp_path: Path) -> None:
    source = set_source(run, torch.bfloat16)
    save_one(run)
    for dtype, expected in ((None, torch.bfloat16), ("float32", torch.float32), ("float16", torch.float16)):
        folder = export_run(run, tmp_path / str(dtype), dtype=dtype)
        tensors = load_file(folder / "model.safetensors")
        assert {each.dtype for each in tensors.values()} == {expected}
        assert source_dtype(folder) == str(expected).removeprefix("torch.")
        if dtype is None:
            before = load_file(source / "model.safetensors")
            assert all(torch.equal(each, before[name]) for name, each in tensors.items())
            size = (source / "model.safetensors").stat().st_size
            assert (folder / "model.safetensors").stat().st_size == pytest.approx(size, rel=0.01)
        assert (folder / "generation_config.json").read_text() == '{"eos_token_id": [2, 1], "top_k": 20}'
        assert not (folder / "pytorch_model.bin").exists()


def test_export_refuses_weights_beyond_float16(run: Path, tmp_path: Path) -> None:
    source = set_source(run, torch.bfloat16)
    tensors = load_file(source / "model.safetensors")
    tensors["model.norm.weight"][0] = 1e5
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    save_one(run)
    with pytest.raises(ConfigError, match=r"model\.norm\.weight has values beyond the range of float16"):
        export_run(run, tmp_path / "out", dtype="float16")
    assert not (tmp_path / "out").exists()


def test_export_has_the_chat_template_of_the_experiment(run: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    save_one(run)
    source = Path(load(run / "experiment.toml").model.path)
    own = AutoTokenizer.from_pretrained(source).chat_template
    assert AutoTokenizer.from_pretrained(export_run(run, tmp_path / "own")).chat_template == own
    template = "{% for message in messages %}<<{{ message['content'] }}>>\u00e4{% endfor %}"
    text = dumps(load(run / "experiment.toml", [f"model.chat_template={json.dumps(template)}"]))
    (run / "experiment.toml").write_text(text)
    # An older tokenizer keeps its template in its own config file.
    (source / "chat_template.jinja").unlink()
    config = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": own}))
    exported = export_run(run, tmp_path / "changed")
    assert AutoTokenizer.from_pretrained(exported).chat_template == template
    assert "chat_template" not in json.loads((exported / "tokenizer_config.json").read_text())


def test_export_of_a_chosen_step_and_of_a_damaged_newest_one(run: Path, tmp_path: Path) -> None:
    save_one(run)
    engine = Engine(EngineConfig.of(load(run / "experiment.toml")), checkpoints=run / "checkpoints")
    with torch.no_grad():
        engine.modules[0].get_parameter("norm.weight").fill_(7.0)
    engine.save(2, last=True)
    engine.close()
    norms = {
        step: load_file(export_run(run, tmp_path / str(step), step=step) / "model.safetensors")[
            "model.norm.weight"
        ]
        for step in (None, "1")
    }
    assert (norms[None] == 7).all()
    assert not (norms["1"] == 7).any()
    (run / "checkpoints" / "step-2" / "__0_0.distcp").write_bytes(b"")
    fallen = load_file(export_run(run, tmp_path / "fallen") / "model.safetensors")
    assert torch.equal(fallen["model.norm.weight"], norms["1"])
    with pytest.raises(ConfigError, match=r"step-2 cannot be used: __0_0\.distcp has 0 bytes"):
        export_run(run, tmp_path / "out", step=2)


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
