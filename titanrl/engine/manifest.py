"""The manifest of a checkpoint: sizes and hashes of its files, its step, its mesh and the versions.

It is written last and atomically, so a checkpoint with a manifest is complete; a later fault of the disk, a
truncated copy or a changed bit shows in the sizes and hashes. The file also holds a hash of itself.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash

__all__ = [
    "MANIFEST",
    "METADATA",
    "Manifest",
    "ManifestError",
    "checkpoint_step",
    "file_problem",
    "hash_files",
    "is_complete",
    "list_steps",
    "read_manifest",
    "remove_manifest",
    "write_durably",
    "write_manifest",
]

MANIFEST, METADATA = "manifest.json", ".metadata"
FORMAT = 1
PACKAGES = ("titanrl", "torch", "torchtitan")
"""Packages whose versions a manifest holds."""
BLOCK_BYTES = 2**23
"""Bytes that are read and hashed at a time."""
STEP = re.compile(r"step-(\d+)")


class ManifestError(ValueError):
    """A manifest that is missing, damaged or of another checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Contents of a manifest."""

    step: int
    """Finished training steps."""
    mesh: Mapping[str, int]
    """Number of processes and parallelism degrees, by name."""
    versions: Mapping[str, str]
    """Package -> version."""
    files: Mapping[str, tuple[int, str]]
    """Name of every other file of the checkpoint -> its bytes and its hash."""


def checkpoint_step(folder: Path) -> int | None:
    """Returns the step in a checkpoint's folder name, ``step-<number>``; None: another name."""
    match = STEP.fullmatch(folder.name)
    return None if match is None else int(match[1])


def list_steps(folder: Path) -> dict[int, Path]:
    """Returns step -> folder of the checkpoints in ``folder``, complete or not, the newest first."""
    steps = {checkpoint_step(path): path for path in folder.glob("step-*") if path.is_dir()}
    return {step: steps[step] for step in sorted((s for s in steps if s is not None), reverse=True)}


def is_complete(checkpoint: Path) -> bool:
    """Whether the checkpoint has a manifest: it was written to its end, and may be damaged since then."""
    return (checkpoint / MANIFEST).is_file()


def hash_files(folder: Path, names: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Returns name -> (bytes, hash) of files.

    Raises:
        OSError: a file cannot be read.
    """
    return {name: _hash_file(folder / name) for name in names}


def write_manifest(
    checkpoint: Path, step: int, mesh: Mapping[str, int], files: Mapping[str, tuple[int, str]]
) -> None:
    """Writes the manifest of a checkpoint whose other files are complete.

    Args:
        checkpoint: its folder.
        step: finished training steps.
        mesh: number of processes and parallelism degrees, by name.
        files: name of every other file -> its bytes and its hash.

    Raises:
        OSError: the disk is full, for instance.
    """
    versions = {package: importlib.metadata.version(package) for package in PACKAGES}
    manifest = Manifest(step=step, mesh=mesh, versions=versions, files=dict(sorted(files.items())))
    write_durably(checkpoint / MANIFEST, _text(asdict(manifest) | {"format": FORMAT}))


def read_manifest(checkpoint: Path) -> Manifest:
    """Returns the manifest of a checkpoint.

    Raises:
        ManifestError: it is missing, damaged, or of another step than the folder's name says.
    """
    path = checkpoint / MANIFEST
    try:
        text = path.read_text(encoding="ascii")
    except FileNotFoundError:
        raise ManifestError(
            f"it has no {MANIFEST}: its writing did not end, or an earlier version wrote it"
        ) from None
    except (OSError, ValueError) as error:
        raise ManifestError(f"{MANIFEST} cannot be read: {error}") from None
    try:
        table: dict[str, Any] = json.loads(text)
        table.pop("hash")
        if _text(table) != text:
            raise ManifestError(f"{MANIFEST} is damaged: it does not have the hash that it holds")
        if table["format"] != FORMAT:
            raise ManifestError(f"{MANIFEST} has format {table['format']}, which this version does not read")
        files = {str(name): (int(size), str(digest)) for name, (size, digest) in table["files"].items()}
        mesh = {str(axis): int(degree) for axis, degree in table["mesh"].items()}
        versions = {str(package): str(version) for package, version in table["versions"].items()}
        manifest = Manifest(step=int(table["step"]), mesh=mesh, versions=versions, files=files)
    except ManifestError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ManifestError(f"{MANIFEST} is damaged: it is not the JSON that titanrl writes") from None
    if manifest.step != checkpoint_step(checkpoint):
        raise ManifestError(f"{MANIFEST} is of step {manifest.step}")
    if METADATA not in files:
        raise ManifestError(f"{MANIFEST} does not list {METADATA}")
    if foreign := next((name for name in files if Path(name).name != name), None):
        raise ManifestError(f"{MANIFEST} lists {foreign!r}, which is not a file name")
    return manifest


def file_problem(checkpoint: Path, manifest: Manifest, names: Sequence[str]) -> str:
    """Returns the first difference between files and the manifest, which names the file; "": none.

    Sizes are compared first, because that needs no reading.

    Args:
        checkpoint: folder of the files.
        manifest: lists them.
        names: files to compare.
    """
    for name in names:
        path, (size, _) = checkpoint / name, manifest.files[name]
        if not path.is_file():
            return f"{name} is missing"
        if (got := path.stat().st_size) != size:
            return f"{name} has {got} bytes instead of {size}"
    for name in names:
        try:
            digest = _hash_file(checkpoint / name)[1]
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        if digest != manifest.files[name][1]:
            return f"{name} is damaged: its hash differs from the one in {MANIFEST}"
    return ""


def remove_manifest(checkpoint: Path) -> None:
    """Marks a checkpoint as incomplete before its files are changed or deleted."""
    (checkpoint / MANIFEST).unlink(missing_ok=True)


def write_durably(path: Path, text: str) -> None:
    """Writes a file that after a crash or a power failure is the old one or the new one.

    Raises:
        OSError: the disk is full, for instance; the old file is unchanged.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _hash_file(path: Path) -> tuple[int, str]:
    """Returns the bytes of a file and its hash, XXH3 of 128 bits: several GB/s on one core."""
    digest, buffer, size = xxhash.xxh3_128(), bytearray(BLOCK_BYTES), 0
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(view):
            digest.update(view[:count])
            size += count
    return size, digest.hexdigest()


def _text(table: dict[str, Any]) -> str:
    """Returns the text of a manifest, with the hash of the text without it."""
    digest = xxhash.xxh3_128(json.dumps(table, sort_keys=True).encode("ascii")).hexdigest()
    return json.dumps(table | {"hash": digest}, sort_keys=True, indent=1) + "\n"
