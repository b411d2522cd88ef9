"""Cache of the reference policy's log-probs on a dataset: computed once before training, stored on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
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

GROUPS_PER_BATCH = 512
"""Groups of examples that are scored together; the engine packs their rows into micro-batches."""


@dataclass(slots=True)
class ReferenceCache:
    """The reference's log-probs of the rows of a dataset, looked up by the content of a row.

    The file name is a hash of everything that the numbers depend on: the token ids and loss masks of the
    rows, in order; the weights and the config of the reference; the precision of weights and computation. If
    any of these changes, another file is used, so the numbers are never stale.
    """

    loaders: Sequence[tuple[ExampleLoader, int | None]]
    """Loaders, each with the number of examples to read from its start; None: all."""
    path: Path
    """File of the log-probs."""
    num_rows: int
    """Number of rows of these examples."""
    _logprobs: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    """[T] float32, log-probs of the loss tokens of all rows, concatenated."""
    _ranges: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Digest of a row -> start and end of its loss tokens."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing needs to be computed, because the file is whole; the same on every rank.

        A damaged file is named on the first rank, and computed again.
        """
        return bool(collectives.broadcast_object(self._is_whole()))

    def _is_whole(self) -> bool:
        if not self.path.is_file():
            return False
        try:
            self._read()
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            if dist.get_rank() == 0:
                print(f"reference cache {self.path} is damaged ({error}); it is computed again", flush=True)
            return False
        return True

    def _read(self) -> dict[str, torch.Tensor]:
        """Returns the tensors of the file.

        Raises:
            ValueError: they are not those that were written.
        """
        tensors: dict[str, torch.Tensor] = load_file(self.path)
        hashed = tensors.pop("hash")
        if not torch.equal(hashed, _hash(tensors)):
            raise ValueError("its hash differs from the stored one")
        return tensors

    def fill(self, engine: Engine, *, live: bool = True) -> None:
        """Scores every row with the engine's reference and writes the file; a collective.

        Args:
            engine: its frozen model ``reference`` scores the rows.
            live: false prints progress as lines even on a terminal.
        """
        reference, rank, degree = engine.frozen["reference"], engine.dp_rank, engine.dp_degree
        logprobs: dict[bytes, torch.Tensor] = {}
        progress = progress_bar(
            "rows scored by the reference", self.num_rows, enabled=engine.rank == 0, live=live
        )
        with progress as advance:
            for batch in _batches(self.loaders):
                rows = collectives.shard_batch(batch, rank, degree)
                scored = reference.score(rows)["logprob"]
                local = [
                    (digest, values[mask])
                    for digest, values, mask in zip(_digests(rows), scored, rows["loss_mask"], strict=True)
                ]
                logprobs.update(collectives.gather_objects(local, engine.dp_group, degree))
                advance(len(batch))
        if engine.rank == 0:
            self._write(logprobs)
        collectives.broadcast_object(None)  # All ranks wait until the file is complete.

    def load(self) -> None:
        """Reads the file."""
        stored = self._read()
        ends = stored["end"].tolist()
        digests = [bytes(digest) for digest in stored["digest"].tolist()]
        self._logprobs = stored["logprob"]
        self._ranges = dict(zip(digests, zip([0, *ends], ends, strict=False), strict=True))

    def score(self, batch: TensorDict, keys: Sequence[str] = ("logprob",)) -> dict[str, torch.Tensor]:
        """Returns ``logprob`` [N, L] float32, the reference's log-probs of the loss tokens, 0 where masked.

        Args:
            batch: [N, L] rows of the dataset, padded to any length.
            keys: outputs to compute; the cache has only ``logprob``.
        """
        mask = batch["loss_mask"]
        result = torch.zeros(mask.shape)
        for row, digest in enumerate(_digests(batch)):
            start, end = self._ranges[digest]
            result[row, mask[row]] = self._logprobs[start:end]
        return {"logprob": result}

    def _write(self, logprobs: Mapping[bytes, torch.Tensor]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        tensors = {
            "digest": torch.tensor([list(digest) for digest in logprobs], dtype=torch.uint8),
            "end": torch.tensor([len(values) for values in logprobs.values()]).cumsum(0),
            "logprob": torch.cat(list(logprobs.values())),
        }
        save_file(tensors | {"hash": _hash(tensors)}, partial)
        partial.rename(self.path)


def _hash(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns [32] uint8, a hash of tensors by name."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().view(torch.uint8).numpy().tobytes())
    return torch.tensor(list(digest.digest()), dtype=torch.uint8)


def reference_cache(
    experiment: Experiment, loader: ExampleLoader, held_out: ExampleLoader | None
) -> ReferenceCache | None:
    """Returns the cache that [reference] configures, which is not loaded yet; None: it configures none.

    Args:
        experiment: a checked experiment.
        loader: loader of the training data.
        held_out: loader of the held-out examples; None: there are none.
    """
    reference, evaluation = experiment.reference, experiment.evaluation
    if reference is None or reference.cache is None:
        return None
    loaders: list[tuple[ExampleLoader, int | None]] = [(loader, None)]
    if held_out is not None and evaluation is not None:
        loaders.append((held_out, evaluation.num_prompts))
    key, num_rows = hashlib.sha256(), 0
    for batch in _batches(loaders):
        num_rows += len(batch)
        for digest in _digests(batch):
            key.update(digest)
    folder = Path(reference.path or experiment.model.path)
    precision = [reference.dtype, experiment.training.mixed_precision_param]
    if experiment.model.head_dtype is not None:
        precision.append(experiment.model.head_dtype)
    key.update(json.dumps([collectives.broadcast_object(_weights_digest(folder)), *precision]).encode())
    return ReferenceCache(loaders, Path(reference.cache) / f"{key.hexdigest()[:32]}.safetensors", num_rows)


def _batches(loaders: Sequence[tuple[ExampleLoader, int | None]]) -> Iterator[TensorDict]:
    """Yields all rows that can be trained on, in batches."""
    groups: list[list[TokenizedExample]] = []
    for loader, count in loaders:
        for rows in loader.iterate_once(count):
            groups.append(rows)
            if len(groups) == GROUPS_PER_BATCH:
                yield collate_examples(groups, out_keys=())
                groups = []
    if groups:
        yield collate_examples(groups, out_keys=())


def _digests(batch: TensorDict) -> Iterator[bytes]:
    """Yields a hash of the tokens and the loss mask of each row, independent of padding."""
    ends = loss_lengths(batch["loss_mask"]).tolist()
    for ids, labels, mask, end in zip(
        batch["input_ids"], batch["labels"], batch["loss_mask"], ends, strict=True
    ):
        content = torch.stack([ids[:end], labels[:end], mask[:end].long()])
        yield hashlib.blake2b(content.numpy().tobytes(), digest_size=16).digest()


def _weights_digest(folder: Path) -> str:
    """Returns a hash of the weights and the config in a model folder; it takes one or two seconds per GB."""
    digest = hashlib.sha256()
    files = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    for path in files:
        try:
            with path.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise ConfigError(f"[reference] {path} can't be read: {error}.") from None
    return digest.hexdigest()
