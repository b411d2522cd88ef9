"""Records of JSON Lines files, JSON arrays, Parquet files and Hugging Face datasets, with their location for
error messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from titanrl.components.sources.records.rows import parse_object, read_lines
from titanrl.errors import ConfigError

__all__ = ["Records", "json_lines", "open_records"]


class Values(Protocol):
    """Records by index; an invalid one raises ValueError when it is read."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Records:
    """Records in file order; Arrow tables are memory-mapped."""

    values: Values
    where: str
    """Prefix of a record's number in messages."""
    numbers: Sequence[int]
    """Line or row number of each record in the file."""

    def location(self, index: int) -> str:
        """Returns the location of a record as messages show it."""
        return f"{self.where}{self.numbers[index]}"


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of JSON that are parsed when they are read, because the text takes a fraction of the memory of
    the objects.
    """

    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return parse_object(self.texts[index])


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements of a JSON array."""

    values: Sequence[Any]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> dict[str, Any]:
        value = self.values[index]
        if not isinstance(value, dict):
            raise ValueError(f"must be an object, got {type(value).__name__}; make each element an object.")
        return value


def open_records(path: str, split: str | None, subset: str | None, owner: str) -> Records:
    """Returns the records of a .jsonl, .json or .parquet file, of a folder, or of a hub dataset.

    Args:
        path: path of the file or folder, or the id of a hub dataset.
        split: split of a Hugging Face dataset; None: train.
        subset: named configuration of a Hugging Face dataset; None: its only one.
        owner: name of the source in messages.

    Raises:
        ConfigError: the data cannot be read, has no such split, or has no records.
    """
    records = _open(path, split, subset, owner)
    if not len(records.values):
        raise ConfigError(f"{owner} path: {path!r} has no rows; add at least one.")
    return records


def _open(path: str, split: str | None, subset: str | None, owner: str) -> Records:
    if Path(path).suffix in (".jsonl", ".json", ".parquet"):
        for key, value in (("split", split), ("subset", subset)):
            if value is not None:
                raise ConfigError(f"{owner} {key}: a single file has no {key}, got {value!r}; leave it out.")
        return _parquet(path, owner) if path.endswith(".parquet") else _json(path, owner)
    return _hugging_face(path, split or "train", subset, owner)


def json_lines(path: str, owner: str) -> Records:
    """Returns the records of a JSON Lines file.

    Raises:
        ConfigError: the file cannot be read or has no rows.
    """
    numbers, texts = zip(*read_lines(Path(path), owner), strict=True)
    return Records(Lines(texts), f"{path}:", numbers)


def _json(path: str, owner: str) -> Records:
    """Returns the records of a JSON array if the file holds one, else those of its lines."""
    lines = read_lines(Path(path), owner)
    # Records are objects, so a .json file that begins with a bracket is one array.
    if not (path.endswith(".json") and lines[0][1].lstrip().startswith("[")):
        return json_lines(path, owner)
    try:
        values = json.loads("\n".join(text for _, text in lines))
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{owner} path: {path!r} is not a JSON array ({error}); fix it, or write one object per line."
        ) from None
    return Records(Elements(values), f"{path} row ", range(len(values)))


def _parquet(path: str, owner: str) -> Records:
    import datasets
    import pyarrow.parquet

    if not Path(path).is_file():
        raise ConfigError(f"{owner} path: {path!r} does not exist; check the path.")
    try:
        table = pyarrow.parquet.read_table(path, memory_map=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{owner} path: {path!r} can't be read: {error}.") from None
    return Records(datasets.Dataset(table), f"{path} row ", range(len(table)))


def _hugging_face(path: str, split: str, subset: str | None, owner: str) -> Records:
    import datasets

    saved = [name for name in ("state.json", "dataset_dict.json") if (Path(path) / name).is_file()]
    try:
        if saved:
            dataset = datasets.load_from_disk(path)
            if isinstance(dataset, datasets.DatasetDict):
                if split not in dataset:
                    known = ", ".join(map(str, dataset))
                    raise ConfigError(f"{owner} split: {path!r} has no {split!r}; splits: {known}.")
                dataset = dataset[split]
        else:
            dataset = datasets.load_dataset(path, subset, split=split)
    except ConfigError:
        raise
    except Exception as error:  # The library, a hub or a file system may raise any type.
        raise ConfigError(
            f"{owner} path: {path!r} (split {split!r}) can't be loaded: {type(error).__name__}: {error}"
        ) from error
    return Records(dataset, f"{path}[{split}] row ", range(len(dataset)))
