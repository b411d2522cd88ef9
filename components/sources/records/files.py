"""Records of JSON Lines, Parquet and Hugging Face datasets, each with its place in messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from titanrl.components.sources.records.rows import parse_object, read_lines
from titanrl.errors import ConfigError

__all__ = ["Records", "json_lines", "open_records"]


class Values(Protocol):
    """Records by their index; one that is none raises ValueError when it is asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Records:
    """Records in the order of the file; Arrow tables are read where they lie."""

    values: Values
    where: str
    """What messages write before a record's number."""
    numbers: Sequence[int]
    """Of each record: its line or row in the file."""

    def place(self, index: int) -> str:
        """Returns where a record stands, as messages name it."""
        return f"{self.where}{self.numbers[index]}"


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of JSON, each parsed when it is asked for: text is a fraction of the objects it becomes."""

    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return parse_object(self.texts[index])


def open_records(path: str, split: str | None, subset: str | None, owner: str) -> Records:
    """Returns the records of a .jsonl or .parquet file, of a folder, or of a hub's dataset.

    Args:
        owner: how messages name the source.

    Raises:
        ConfigError: it can't be read, has no such split, or holds no record.
    """
    found = _opened(path, split, subset, owner)
    if not len(found.values):
        raise ConfigError(f"{owner} path: {path!r} holds no row; add at least one.")
    return found


def _opened(path: str, split: str | None, subset: str | None, owner: str) -> Records:
    if Path(path).suffix in (".jsonl", ".json", ".parquet"):
        for key, value in (("split", split), ("subset", subset)):
            if value is not None:
                raise ConfigError(f"{owner} {key}: a single file has none, got {value!r}; leave it out.")
        return _parquet(path, owner) if path.endswith(".parquet") else json_lines(path, owner)
    return _hugging_face(path, split or "train", subset, owner)


def json_lines(path: str, owner: str) -> Records:
    """Returns the records of a JSON Lines file.

    Raises:
        ConfigError: it can't be read, or holds none.
    """
    numbers, texts = zip(*read_lines(Path(path), owner), strict=True)
    return Records(Lines(texts), f"{path}:", numbers)


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
            found = datasets.load_from_disk(path)
            if isinstance(found, datasets.DatasetDict):
                if split not in found:
                    known = ", ".join(map(str, found))
                    raise ConfigError(f"{owner} split: {path!r} has no {split!r}; splits: {known}.")
                found = found[split]
        else:
            found = datasets.load_dataset(path, subset, split=split)
    except ConfigError:
        raise
    except Exception as error:  # Whatever the library, a hub or a file system raises, the path is to blame.
        raise ConfigError(
            f"{owner} path: {path!r} (split {split!r}) can't be loaded: {type(error).__name__}: {error}"
        ) from error
    return Records(found, f"{path}[{split}] row ", range(len(found)))
