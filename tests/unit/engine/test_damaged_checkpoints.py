"""Damaged checkpoints are named with the file, and the newest whole one before is used."""

from __future__ import annotations

import json
import logging
import os
import pickle
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader

from titanrl.config.engine_tables import Checkpoint
from titanrl.engine import Engine, has_checkpoint
from titanrl.engine.checkpoint_reader import load_checkpoint, read_metadata
from titanrl.engine.manifest import hash_files, read_manifest, write_manifest
from titanrl.engine.restore import choose_checkpoint, load_weights, problem_of
from titanrl.errors import ConfigError

pytestmark = pytest.mark.slow

Make = Callable[..., Engine]
SHARD, METADATA, MANIFEST = "__0_0.distcp", ".metadata", "manifest.json"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, make_engine: Make) -> Path:
    """A folder with the checkpoints of steps 1, 2 and 3; the norm's weight is the step."""
    folder = tmp_path_factory.mktemp("three") / "checkpoints"
    engine = make_engine(checkpoints=folder, checkpoint=Checkpoint(interval=1, keep_latest_k=0))
    for step in (1, 2, 3):
        with torch.no_grad():
            engine.modules[0].get_parameter("norm.weight").fill_(step)
        engine.save(step)
    engine.close()
    return folder


@pytest.fixture
def folder(three: Path, tmp_path: Path) -> Path:
    shutil.copytree(three, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def rewrite_manifest(checkpoint: Path, step: int | None = None) -> None:
    """Writes a manifest that fits the files, as a person who changes them on purpose would."""
    before = read_manifest(checkpoint)
    files = hash_files(checkpoint, before.files)
    write_manifest(checkpoint, before.step if step is None else step, before.mesh, files)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 7)


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_manifest_lists_sizes_hashes_step_mesh_and_versions(folder: Path) -> None:
    manifest = read_manifest(folder / "step-2")
    sizes = {name: (folder / "step-2" / name).stat().st_size for name in (SHARD, METADATA)}
    assert {name: size for name, (size, _) in manifest.files.items()} == sizes
    assert manifest.step == 2
    assert set(manifest.mesh.values()) == {1}
    assert manifest.versions["torch"] == torch.__version__
    assert set(manifest.versions) == {"titanrl", "torch", "torchtitan"}


@pytest.mark.parametrize("name", [SHARD, METADATA, MANIFEST])
def test_every_flipped_bit_is_found_and_its_file_named(folder: Path, name: str) -> None:
    path, draw = folder / "step-3" / name, random.Random(0)
    size = 8 * path.stat().st_size
    bits = {0, size - 1, *(draw.randrange(size) for _ in range(300 if name == MANIFEST else 60))}
    for bit in bits:
        flip(path, bit)
        assert name in problem_of(folder / "step-3"), bit
        flip(path, bit)
    assert problem_of(folder / "step-3") == ""


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated shard": (lambda path: truncate(path / SHARD), rf"{SHARD} has \d+ bytes instead of \d+"),
    "missing shard": (lambda path: (path / SHARD).unlink(), rf"{SHARD} is missing"),
    "empty metadata": (lambda path: (path / METADATA).write_bytes(b""), r"\.metadata has 0 bytes instead of"),
    "missing metadata": (lambda path: (path / METADATA).unlink(), r"\.metadata is missing"),
    "missing manifest": (lambda path: (path / MANIFEST).unlink(), "it has no manifest.json: its writing did"),
    "empty manifest": (lambda path: (path / MANIFEST).write_text(""), "manifest.json is damaged"),
    "other JSON": (lambda path: (path / MANIFEST).write_text("[]"), "manifest.json is damaged"),
    "binary manifest": (lambda path: (path / MANIFEST).write_bytes(b"\xff"), "manifest.json cannot be read"),
    "other step": (lambda path: rewrite_manifest(path, step=4), "manifest.json is of step 4"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_checkpoint_is_named_and_the_one_before_used(
    folder: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    damage, says = FAULTS[fault]
    damage(folder / "step-3")
    with caplog.at_level(logging.WARNING, "titanrl"):
        assert choose_checkpoint(folder) == folder / "step-2"
    first, second = caplog.messages
    assert first.startswith(f"{folder / 'step-3'} is not used: ")
    assert re.search(says, first)
    assert second == f"{folder / 'step-2'} is used, the newest whole checkpoint."


def test_two_damaged_checkpoints_are_skipped_and_a_chosen_one_is_refused(folder: Path) -> None:
    truncate(folder / "step-3" / SHARD)
    flip(folder / "step-2" / METADATA, 999)
    assert choose_checkpoint(folder) == folder / "step-1"
    with pytest.raises(ConfigError, match=rf"step-3 cannot be used: {SHARD} has .*; choose --step 1, which"):
        choose_checkpoint(folder, "3")
    (folder / "step-1" / SHARD).unlink()
    with pytest.raises(ConfigError, match=rf"no whole checkpoint: step-3: {SHARD} .*; step-2: .*; step-1: "):
        choose_checkpoint(folder)


def test_only_unfinished_checkpoints_count_as_none(folder: Path) -> None:
    for step in (1, 2, 3):
        (folder / f"step-{step}" / MANIFEST).unlink()
    assert choose_checkpoint(folder) is None
    assert not has_checkpoint(folder)


def test_folder_with_another_name_is_ignored_with_a_sentence(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("step-abc", "step-9.old", "step-"):
        shutil.copytree(folder / "step-3", folder / name)
    assert choose_checkpoint(folder) == folder / "step-3"
    assert has_checkpoint(folder)
    assert caplog.messages == [
        f"{folder} also holds step-, step-9.old, step-abc: ignored, no checkpoint has such a name."
    ]


def test_missing_and_misspelt_steps_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no checkpoint of step 7; there are 1, 2, 3\."):
        choose_checkpoint(folder, 7)
    with pytest.raises(ConfigError, match="must be the number of a checkpoint or 'best', got 'bset'"):
        choose_checkpoint(folder, "bset")
    with pytest.raises(ConfigError, match=r"records no best checkpoint; train with .* --step 1, 2, 3"):
        choose_checkpoint(folder, "best")


def test_resume_uses_the_checkpoint_before_a_damaged_one(folder: Path, make_engine: Make) -> None:
    flip(folder / "step-3" / SHARD, 12345)
    engine = make_engine(checkpoints=folder)
    assert engine.load()
    assert (engine.modules[0].get_parameter("norm.weight") == 2).all()
    engine.close()


class Attack:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.system, (f"touch {self.path}",)


def test_metadata_with_code_is_refused_and_runs_nothing(folder: Path, tmp_path: Path) -> None:
    checkpoint, trace = folder / "step-3", tmp_path / "ran"
    metadata = read_metadata(checkpoint)
    metadata.planner_data = {"a": Attack(trace)}
    (checkpoint / METADATA).write_bytes(pickle.dumps(metadata))
    rewrite_manifest(checkpoint)
    assert problem_of(checkpoint) == (
        ".metadata refers to posix.system, which no checkpoint needs; nothing of it was run"
    )
    assert choose_checkpoint(folder) == folder / "step-2"
    with pytest.raises(ConfigError, match=r"is not loaded: \.metadata refers to posix\.system"):
        load_checkpoint({}, checkpoint)
    assert not trace.exists()
    FileSystemReader(checkpoint).read_metadata()  # torch's own reader runs it
    assert trace.exists()


def test_values_with_code_are_refused_and_run_nothing(
    folder: Path, tmp_path: Path, make_engine: Make
) -> None:
    checkpoint, trace = folder / "step-3", tmp_path / "ran"
    metadata = read_metadata(checkpoint)
    info = next(
        info for index, info in metadata.storage_data.items() if index.fqn == "lr_scheduler.last_epoch"
    )
    torch.save(Attack(trace), checkpoint / "__0_1.distcp")
    info.relative_path, info.offset = "__0_1.distcp", 0
    info.length = (checkpoint / "__0_1.distcp").stat().st_size
    (checkpoint / METADATA).write_bytes(pickle.dumps(metadata))
    rewrite_manifest(checkpoint)
    engine = make_engine(checkpoints=folder)
    with pytest.raises(ConfigError, match=r"step-3 cannot be loaded: Weights only load failed"):
        engine.load()
    engine.close()
    assert not trace.exists()
    torch.load(checkpoint / "__0_1.distcp", weights_only=False)
    assert trace.exists()


def test_metadata_refers_to_files_of_its_own_folder_only(folder: Path) -> None:
    checkpoint = folder / "step-3"
    metadata = read_metadata(checkpoint)
    next(iter(metadata.storage_data.values())).relative_path = "../step-2/" + SHARD
    (checkpoint / METADATA).write_bytes(pickle.dumps(metadata))
    rewrite_manifest(checkpoint)
    assert "which is not in the checkpoint's folder" in problem_of(checkpoint)


def test_manifest_refers_to_files_of_its_own_folder_only(folder: Path) -> None:
    manifest = read_manifest(folder / "step-3")
    write_manifest(folder / "step-3", 3, manifest.mesh, {**manifest.files, "../step-2/x": (1, "00")})
    assert problem_of(folder / "step-3") == "manifest.json lists '../step-2/x', which is not a file name"
    assert json.loads((folder / "step-3" / MANIFEST).read_text())["step"] == 3


def test_checkpoint_of_another_model_is_a_sentence(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"step-3 cannot be loaded: Size mismatch .* for norm\.weight"):
        load_checkpoint({"norm.weight": torch.zeros(3)}, folder / "step-3")
    with pytest.raises(ConfigError, match="Missing key in checkpoint state_dict: bias"):
        load_weights([torch.nn.Linear(2, 2)], folder / "step-3")
