"""Damaged, incomplete and unsuitable weights are refused with the file, the tensor and a remedy."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from titanrl import ConfigError
from titanrl.models import import_model, inspect
from titanrl.models.stored import source_dtype, stored_tensors
from titanrl.models.tiny import create

EMBEDDING, NORM = "model.embed_tokens.weight", "model.norm.weight"
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("model") / "tiny", tied=False)


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "tiny")
    return tmp_path / "tiny"


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replaces tensors, adds them, or removes those that are None."""
    changed = load_file(folder / FILE) | {name.replace("__", "."): each for name, each in tensors.items()}
    kept = {name: each for name, each in changed.items() if each is not None}
    save_file(kept, folder / FILE, metadata={"format": "pt"})


def set_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def split(folder: Path) -> None:
    """Divides the weights over two files with an index."""
    tensors = load_file(folder / FILE)
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file, metadata={"format": "pt"})
    weight_map = {name: file for file, part in parts.items() for name in part}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    (folder / FILE).unlink()


def test_headers_give_every_tensor_of_one_file_or_of_several(folder: Path) -> None:
    one = stored_tensors(folder, "it")
    expected = {name: tuple(tensor.shape) for name, tensor in load_file(folder / FILE).items()}
    assert {name: each.shape for name, each in one.items()} == expected
    assert {each.dtype for each in one.values()} == {"F32"}
    split(folder)
    several = stored_tensors(folder, "it")
    assert {name: each[1:] for name, each in several.items()} == {
        name: each[1:] for name, each in one.items()
    }
    assert {each.file for each in several.values()} == {"a.safetensors", "b.safetensors"}
    inspect(folder)


@pytest.mark.parametrize("left", [0, 5, 8, 100, -1])
def test_truncated_weights_are_found_before_they_are_loaded(folder: Path, left: int) -> None:
    size = (folder / FILE).stat().st_size
    os.truncate(folder / FILE, left % size)
    with pytest.raises(ConfigError, match=rf"'{folder}': {FILE} can't be read: .*; import or download"):
        inspect(folder)


def longer(folder: Path) -> None:
    with (folder / FILE).open("ab") as file:
        file.write(b"\0")


def without_second_file(folder: Path) -> None:
    split(folder)
    (folder / "b.safetensors").unlink()


def two_sets(folder: Path) -> None:
    shutil.copyfile(folder / FILE, folder / "before")
    split(folder)
    (folder / "before").rename(folder / FILE)


def twice(folder: Path) -> None:
    split(folder)
    shutil.copyfile(folder / "a.safetensors", folder / "b.safetensors")


def wrong_index(folder: Path) -> None:
    split(folder)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.other.weight"] = "a.safetensors"
    (folder / INDEX).write_text(json.dumps(index))


def outside(folder: Path) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {EMBEDDING: "../other/model.safetensors"}}))


def without_first_layer(folder: Path) -> None:
    names = [name for name in load_file(folder / FILE) if name.startswith("model.layers.0.")]
    change(folder, **dict.fromkeys(names))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            without_first_layer,
            "holds no weights of model.layers.0, and config.json says num_hidden_layers = 2",
        ),
        (longer, f"{FILE} can't be read: it is longer than its header says"),
        (without_second_file, f"b.safetensors is missing, which {INDEX} lists"),
        (two_sets, f"holds {FILE} and {INDEX}, which lists other files; remove the outdated one"),
        (twice, "a.safetensors and b.safetensors both hold lm_head.weight; remove the outdated file"),
        (wrong_index, f"a.safetensors does not hold model.other.weight, as {INDEX} says"),
        (outside, f"{INDEX} lists '../other/model.safetensors', which is not a file name"),
        (
            lambda folder: (folder / INDEX).write_text("{}"),
            f"{INDEX} has no weight_map from tensors to files",
        ),
        (lambda folder: change(folder, model__embed_tokens__weight=None), f"holds no {EMBEDDING}; import"),
        (
            lambda folder: set_config(folder, num_hidden_layers=1),
            "holds model.layers.1.input_layernorm.weight, but config.json says num_hidden_layers = 1",
        ),
        (
            lambda folder: set_config(folder, num_hidden_layers=4),
            "holds no weights of model.layers.2, and config.json says num_hidden_layers = 4",
        ),
    ],
)
def test_incomplete_weights_are_found_before_they_are_loaded(
    folder: Path, spoil: Callable[[Path], Any], message: str
) -> None:
    spoil(folder)
    with pytest.raises(ConfigError) as error:
        inspect(folder)
    assert message in str(error.value)
    assert f"model folder '{folder}'" in str(error.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_import_refuses_weights_that_are_not_finite(folder: Path, tmp_path: Path, value: float) -> None:
    norm = load_file(folder / FILE)[NORM]
    norm[3] = value
    change(folder, model__norm__weight=norm)
    with pytest.raises(ConfigError, match=rf"{NORM} in {FILE} holds NaN or infinity; download"):
        import_model(folder, tmp_path / "out", log=str)
    assert not (tmp_path / "out").exists()


def test_import_refuses_integers_as_weights(folder: Path, tmp_path: Path) -> None:
    change(folder, model__norm__weight=torch.ones(32, dtype=torch.int8))
    with pytest.raises(ConfigError, match=rf"{NORM} in {FILE} has dtype I8, which is quantized"):
        import_model(folder, tmp_path / "out", log=str)


def test_import_refuses_a_tied_head_of_its_own(folder: Path, tmp_path: Path) -> None:
    set_config(folder, tie_word_embeddings=True)
    with pytest.raises(ConfigError, match=r"lm_head\.weight in model\.safetensors differs from model\.embed"):
        import_model(folder, tmp_path / "out", log=str)
    change(folder, lm_head__weight=load_file(folder / FILE)[EMBEDDING].clone())
    import_model(folder, tmp_path / "out", log=str)


def test_import_copies_the_listed_weights_only(folder: Path, tmp_path: Path) -> None:
    shutil.copyfile(folder / FILE, folder / "consolidated.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"other weights")
    (folder / "pytorch_model.bin.index.json").write_text("{}")
    (folder / "modeling.py").write_text("raise SystemExit")
    target = import_model(folder, tmp_path / "out", log=str)
    names = {path.name for path in target.iterdir()}
    assert FILE in names
    assert not names & {"consolidated.safetensors", "pytorch_model.bin", "modeling.py"}
    assert "pytorch_model.bin.index.json" not in names


class Attack:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.system, (f"touch {self.path}",)


def pickled(folder: Path, **changes: Any) -> Path:
    """Replaces the weights by pickled ones; None removes a tensor."""
    tensors = load_file(folder / FILE) | {name.replace("__", "."): each for name, each in changes.items()}
    torch.save(
        {name: each for name, each in tensors.items() if each is not None}, folder / "pytorch_model.bin"
    )
    (folder / FILE).unlink()
    return folder / "pytorch_model.bin"


def test_import_of_pickled_code_runs_nothing(folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    path = pickled(folder, attack=Attack(trace))
    with pytest.raises(
        ConfigError, match=r"pytorch_model\.bin can't be read as weights: .*nothing of it was"
    ):
        import_model(folder, tmp_path / "out", log=str)
    path.write_bytes(pickle.dumps(Attack(trace)))
    with pytest.raises(
        ConfigError, match=r"pytorch_model\.bin can't be read as weights: .*nothing of it was"
    ):
        import_model(folder, tmp_path / "out", log=str)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__norm__weight": None}, f"does not hold {NORM}, which its config.json needs"),
        (
            {"model__other__weight": torch.ones(3)},
            "holds model.other.weight, which a model of its config.json",
        ),
        ({"model__norm__weight": torch.ones(3)}, "pytorch_model.bin"),
        ({"model__norm__weight": torch.full((32,), float("nan"))}, f"{NORM} in {FILE} holds NaN or infinity"),
    ],
)
def test_import_refuses_incomplete_pickled_weights(
    folder: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    pickled(folder, **changes)
    with pytest.raises(ConfigError) as error:
        import_model(folder, tmp_path / "out", log=str)
    assert message in str(error.value)


def test_import_refuses_truncated_pickled_weights_and_none(folder: Path, tmp_path: Path) -> None:
    path = pickled(folder)
    os.truncate(path, 1000)
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin can't be read as weights"):
        import_model(folder, tmp_path / "out", log=str)
    path.unlink()
    with pytest.raises(ConfigError, match=r"holds no weights: neither \.safetensors nor pytorch_model\.bin"):
        import_model(folder, tmp_path / "out", log=str)


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_source_dtype_is_that_of_the_config_or_of_the_weights(folder: Path, key: str) -> None:
    set_config(folder, **{"dtype": None, "torch_dtype": None, key: "bfloat16"})
    assert source_dtype(folder) == "bfloat16"
    set_config(folder, **{key: "auto"})
    assert source_dtype(folder) == "float32"
    change(folder, model__embed_tokens__weight=load_file(folder / FILE)[EMBEDDING].half())
    assert source_dtype(folder) == "float16"
