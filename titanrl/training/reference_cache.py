"""Log-probs of the frozen reference on fixed answers: computed once before training, kept on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict

from titanrl.data.collate import collate_examples
from titanrl.engine import collectives
from titanrl.errors import ConfigError
from titanrl.ops.prefix import loss_lengths
from titanrl.report.progress import progress_bar

if TYPE_CHECKING:
    from titanrl.config.experiment import Experiment
    from titanrl.data.encode import TokenizedExample
    from titanrl.data.examples import ExampleLoader
    from titanrl.engine import Engine

__all__ = ["ReferenceCache", "reference_cache"]

ROWS_AT_ONCE = 512
"""Examples that are scored together; the engine packs them into micro-batches."""


@dataclass(slots=True)
class ReferenceCache:
    """What the reference says of each row of some data, found by the row's content.

    The file's name is a hash of all that its numbers depend on: the rows' token ids and which of them are
    trained, in order; the reference's weights and config; the precision of both weights and computation.
    Anything else there is, is another file, so that no number is ever stale.
    """

    feeds: Sequence[tuple[ExampleLoader, int | None]]
    """Sources and how many of their first examples are read; None: all."""
    path: Path
    num_rows: int
    """Rows that these are."""
    _logprobs: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    """[T] float32, the rows' trained labels one after the other."""
    _places: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Digest of a row -> where its labels begin and end."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing needs to be computed; the same on every rank."""
        return bool(collectives.broadcast_object(self.path.is_file()))

    def fill(self, engine: Engine, *, live: bool = True) -> None:
        """Scores every row with the engine's reference and writes the file; a collective.

        Args:
            live: false shows how far it is in lines, on a terminal too.
        """
        role, rank, degree = engine.frozen["reference"], engine.dp_rank, engine.dp_degree
        found: dict[bytes, torch.Tensor] = {}
        shown = progress_bar(
            "rows scored by the reference", self.num_rows, enabled=engine.rank == 0, live=live
        )
        with shown as advance:
            for batch in _batches(self.feeds):
                rows = collectives.shard_batch(batch, rank, degree)
                scored = role.score(rows)["logprob"]
                own = [
                    (digest, values[mask])
                    for digest, values, mask in zip(_digests(rows), scored, rows["loss_mask"], strict=True)
                ]
                found.update(collectives.gather_objects(own, engine.dp_group, degree))
                advance(len(batch))
        if engine.rank == 0:
            self._write(found)
        collectives.broadcast_object(None)  # No rank reads before the file is complete.

    def load(self) -> None:
        """Reads the file."""
        from safetensors.torch import load_file

        stored = load_file(self.path)
        ends = stored["end"].tolist()
        digests = [bytes(digest) for digest in stored["digest"].tolist()]
        self._logprobs = stored["logprob"]
        self._places = dict(zip(digests, zip([0, *ends], ends, strict=False), strict=True))

    def score(self, batch: TensorDict, keys: Sequence[str] = ("logprob",)) -> dict[str, torch.Tensor]:
        """Returns ``logprob`` [N, L] float32, what the reference gives the trained labels, 0 where masked.

        Args:
            batch: [N, L] rows of the data, padded to any length.
            keys: of a role; there is no other.
        """
        mask = batch["loss_mask"]
        result = torch.zeros(mask.shape)
        for row, digest in enumerate(_digests(batch)):
            start, end = self._places[digest]
            result[row, mask[row]] = self._logprobs[start:end]
        return {"logprob": result}

    def _write(self, found: Mapping[bytes, torch.Tensor]) -> None:
        from safetensors.torch import save_file

        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        tensors = {
            "digest": torch.tensor([list(digest) for digest in found], dtype=torch.uint8),
            "end": torch.tensor([len(values) for values in found.values()]).cumsum(0),
            "logprob": torch.cat(list(found.values())),
        }
        save_file(tensors, partial)
        partial.rename(self.path)


def reference_cache(
    experiment: Experiment, feed: ExampleLoader, held_out: ExampleLoader | None
) -> ReferenceCache | None:
    """Returns the cache that [reference] asks for, not read yet; None: it asks for none."""
    reference, evaluation = experiment.reference, experiment.evaluation
    if reference is None or reference.cache is None:
        return None
    feeds: list[tuple[ExampleLoader, int | None]] = [(feed, None)]
    if held_out is not None and evaluation is not None:
        feeds.append((held_out, evaluation.num_prompts))
    key, num_rows = hashlib.sha256(), 0
    for batch in _batches(feeds):
        num_rows += len(batch)
        for digest in _digests(batch):
            key.update(digest)
    folder = Path(reference.path or experiment.model.path)
    precision = [reference.dtype, experiment.training.mixed_precision_param]
    key.update(json.dumps([collectives.broadcast_object(_weights_digest(folder)), *precision]).encode())
    return ReferenceCache(feeds, Path(reference.cache) / f"{key.hexdigest()[:32]}.safetensors", num_rows)


def _batches(feeds: Sequence[tuple[ExampleLoader, int | None]]) -> Iterator[TensorDict]:
    """Yields every row that can be trained on, as batches."""
    groups: list[list[TokenizedExample]] = []
    for feed, count in feeds:
        for rows in feed.iterate_once(count):
            groups.append(rows)
            if len(groups) == ROWS_AT_ONCE:
                yield collate_examples(groups, out_keys=())
                groups = []
    if groups:
        yield collate_examples(groups, out_keys=())


def _digests(batch: TensorDict) -> Iterator[bytes]:
    """Yields a hash of each row's tokens and trained labels; how far it is padded does not enter."""
    ends = loss_lengths(batch["loss_mask"]).tolist()
    for ids, labels, mask, end in zip(
        batch["input_ids"], batch["labels"], batch["loss_mask"], ends, strict=True
    ):
        content = torch.stack([ids[:end], labels[:end], mask[:end].long()])
        yield hashlib.blake2b(content.numpy().tobytes(), digest_size=16).digest()


def _weights_digest(folder: Path) -> str:
    """Returns a hash of a model folder's weights and config: a second or two for each GB."""
    digest = hashlib.sha256()
    files = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    for path in files:
        try:
            with path.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise ConfigError(f"[reference] {path} can't be read: {error}.") from None
    return digest.hexdigest()
