"""Weights that do not fit their config.json, or are damaged, are sentences when the engine loads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from titanrl.engine import Engine
from titanrl.errors import ConfigError
from titanrl.models import tiny

Make = Callable[..., Engine]
FILE, NORM, WIDE = "model.safetensors", "model.norm.weight", "model.layers.1.mlp.up_proj.weight"


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(folder / FILE))


def rewrite(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, folder / FILE, metadata={"format": "pt"})


def without(folder: Path) -> None:
    tensors = tensors_of(folder)
    del tensors[WIDE]
    rewrite(folder, tensors)


def with_value(value: float) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        tensors = tensors_of(folder)
        tensors[WIDE][1, 2] = value
        rewrite(folder, tensors)

    return spoil


def narrower(folder: Path) -> None:
    tensors = tensors_of(folder)
    rewrite(folder, tensors | {WIDE: tensors[WIDE][1:].clone()})


def further(folder: Path) -> None:
    rewrite(folder, tensors_of(folder) | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)})


def integers(folder: Path) -> None:
    rewrite(folder, tensors_of(folder) | {NORM: torch.ones(32, dtype=torch.int8)})


def truncated(folder: Path) -> None:
    data = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(data[:-9])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            without,
            f"does not hold what its config.json says: {WIDE} must have shape [64, 32], got none; restore",
        ),
        (narrower, f"{WIDE} must have shape [64, 32], got one of shape [63, 32] in {FILE}; restore"),
        (with_value(float("nan")), f"{WIDE} in {FILE} holds NaN or infinity; import"),
        (with_value(float("-inf")), f"{WIDE} in {FILE} holds NaN or infinity; import"),
        (further, f"{FILE} holds model.layers.0.self_attn.q_proj.bias, which a model of its config.json"),
        (integers, f"{NORM} in {FILE} has dtype I8, which is quantized or no weight"),
        (truncated, f"{FILE} can't be read: it is truncated: it holds"),
        (lambda folder: (folder / FILE).unlink(), f"has no {FILE}; make one with `titanrl model import`"),
    ],
)
def test_unsuitable_weights_are_named(
    tmp_path: Path, make_engine: Make, spoil: Callable[[Path], Any], message: str
) -> None:
    folder = tiny.create(tmp_path / "model")
    spoil(folder)
    with pytest.raises(ConfigError) as error:
        make_engine(model=str(folder))
    assert message in str(error.value)
    assert str(folder) in str(error.value)


def test_known_tensors_without_use_and_other_files_are_ignored(tmp_path: Path, make_engine: Make) -> None:
    folder = tiny.create(tmp_path / "model")
    expected = dict(make_engine(model=str(folder)).weights())
    tensors = tensors_of(folder)
    head = {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    table = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    shutil.copyfile(folder / FILE, folder / "consolidated.safetensors")
    rewrite(folder, tensors | head | table)
    names = dict.fromkeys(tensors | head | table, FILE)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    engine = make_engine(model=str(folder))
    assert all(torch.equal(value, expected[name]) for name, value in engine.weights())
