"""Checks of model folders and their messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from titanrl import ConfigError
from titanrl.config import load
from titanrl.models import inspect
from titanrl.models.folder import atomic_folder
from titanrl.models.read_config import read_config
from titanrl.models.tiny import create
from titanrl.preflight.verify import preflight

TINY_GRPO = Path(__file__).parents[3] / "experiments" / "tiny_grpo.toml"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return create(tmp_path / "tiny")


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_model_folder_config_is_read(folder: Path) -> None:
    info = inspect(folder)
    assert info.architecture == "LlamaForCausalLM"
    assert info.max_length == 256
    assert info.is_tied
    assert info.has_chat_template
    assert info.vocab_size % 8 == 0
    assert info.vocab_size - 8 < info.num_tokens <= info.vocab_size


def test_qwen3_is_supported(tmp_path: Path) -> None:
    info = inspect(create(tmp_path / "qwen", model_type="qwen3", tied=False))
    assert (info.architecture, info.is_tied) == ("Qwen3ForCausalLM", False)


def test_value_model_has_one_label(tmp_path: Path) -> None:
    folder = create(tmp_path / "value", head="value")
    assert inspect(folder).is_value_model
    change(folder / "config.json", id2label={"0": "bad", "1": "good"})
    with pytest.raises(ConfigError, match=r"must have 1 label \(id2label\) to be a value model, got 2"):
        inspect(folder)


def test_sharded_weights_are_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    names = {"model.embed_tokens.weight": "model-00001-of-00001.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert inspect(folder).vocab_size > 0
    change(folder / "config.json", vocab_size=4096)
    with pytest.raises(ConfigError, match="wrong vocabulary"):
        inspect(folder)


def more_tokens(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["€"] = 5000
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is not JSON"),
        (
            lambda folder: (folder / "config.json").write_text("[]"),
            "config.json must hold an object, got list",
        ),
        (
            lambda folder: change(folder / "config.json", architectures=["GPT2LMHeadModel"]),
            "architecture 'GPT2LMHeadModel' is not supported",
        ),
        (
            lambda folder: change(folder / "config.json", quantization_config={"quant_method": "gptq"}),
            "holds quantized weights",
        ),
        (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer.json can't be read"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no model.safetensors"),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 99),
            "model.safetensors can't be read",
        ),
        (
            lambda folder: change(folder / "config.json", vocab_size=4096),
            "wrong vocabulary: config.json says",
        ),
        (
            lambda folder: change(folder / "config.json", vocab_size=None),
            "config.json must give vocab_size as a whole number, got None; restore the config.json",
        ),
        (
            lambda folder: change(folder / "config.json", max_position_embeddings="256"),
            "config.json must give max_position_embeddings as a whole number, got '256'",
        ),
        (
            lambda folder: change(folder / "config.json", architectures="LlamaForCausal"),
            "architecture 'LlamaForCausal' is not supported; did you mean 'LlamaForCausalLM'",
        ),
        (
            lambda folder: change(folder / "config.json", model_type="qwen2"),
            "model_type 'qwen2' is not supported; did you mean 'qwen3'? supported: deepseek_v3, llama,",
        ),
        (
            lambda folder: change(folder / "config.json", model_type=None),
            "config.json must give model_type as a string, got None",
        ),
        (more_tokens, "wrong vocabulary: its tokenizer knows 5001 token ids"),
    ],
)
def test_invalid_folder_is_refused(folder: Path, spoil: Callable[[Path], Any], message: str) -> None:
    spoil(folder)
    with pytest.raises(ConfigError) as error:
        inspect(folder)
    assert message in str(error.value)
    assert f"model folder '{folder}'" in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("hidden_size", None, "config.json must give hidden_size as a whole number, got None; restore"),
        ("num_hidden_layers", "two", "must give num_hidden_layers as a whole number, got 'two'"),
        ("rms_norm_eps", None, "config.json cannot be read: float"),
        ("rope_parameters", 5, "config.json cannot be read: 'int' object is not iterable; restore"),
    ],
)
def test_invalid_config_is_refused_before_the_run(folder: Path, key: str, value: Any, message: str) -> None:
    change(folder / "config.json", **{key: value})
    with pytest.raises(ConfigError) as error:
        read_config(folder)
    assert message in str(error.value)
    experiment = load(TINY_GRPO, [f"model.path='{folder}'"])
    (problem,) = preflight(experiment)
    assert (problem.where, problem.key) == ("model", "path")
    assert message in problem.message


def test_invalid_config_is_reported_once(folder: Path) -> None:
    change(folder / "config.json", num_attention_heads=None)
    experiment = load(TINY_GRPO, [f"model.path='{folder}'", "sampler.name=vllm"])
    (problem,) = preflight(experiment)
    assert (problem.where, problem.key) == ("model", "path")


def test_missing_folder_is_refused_with_a_remedy() -> None:
    with pytest.raises(
        ConfigError, match=r"'nowhere' does not exist; get one with `titanrl model get smollm2-135m`"
    ):
        inspect("nowhere")


def test_folder_is_created_atomically(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model"
    with pytest.raises(FileNotFoundError), atomic_folder(target) as partial:
        (partial / "missing" / "file").touch()
    assert list(target.parent.iterdir()) == []
    with atomic_folder(target) as partial:
        (partial / "file").touch()
    assert [path.name for path in target.parent.iterdir()] == ["model"]
    assert (target / "file").stat().st_mode & 0o777 == 0o644
