"""Frozen reward model in this process: maps token ids to the scores of its heads."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from titanrl.errors import ConfigError

__all__ = ["BATCH_TOKENS", "ModelFacts", "Scorer", "facts_of", "fingerprint", "num_parameters", "scorer"]

BATCH_TOKENS = 8192
"""Default number of tokens per forward pass."""


class ModelFacts(NamedTuple):
    """Metadata of a reward model, read without loading weights."""

    heads: tuple[str, ...]
    """Names of the heads, in the order of the outputs."""
    max_length: int
    """Context length, tokens."""
    vocab_size: int
    vocabulary: str
    """Fingerprint of the tokenizer's vocabulary."""


def facts_of(folder: str | Path) -> ModelFacts:
    """Returns the metadata of a folder with a transformers ...ForSequenceClassification model.

    Raises:
        ConfigError: a missing or broken file, or another kind of model, whose head would be
            initialised at random.
    """
    folder = Path(folder)
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ConfigError(
                f"reward model folder '{folder}' has no {name}; write one with `titanrl export`."
            )
    with _reading(folder, "config.json"):
        config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
        architecture = (config.get("architectures") or ["none"])[0]
        if not str(architecture).endswith("ForSequenceClassification"):
            raise ConfigError(
                f"reward model folder '{folder}' must hold a ...ForSequenceClassification, got "
                f"{architecture}; train one with [model] head = 'value' and write it with `titanrl export`."
            )
        names = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
        return ModelFacts(
            heads=tuple(names[key] for key in sorted(names, key=int)),
            max_length=int(config["max_position_embeddings"]),
            vocab_size=int(config["vocab_size"]),
            vocabulary=fingerprint(_vocabulary(folder)),
        )


def _vocabulary(folder: Path) -> dict[str, int]:
    from tokenizers import Tokenizer

    with _reading(folder, "tokenizer.json"):
        return Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()


@contextmanager
def _reading(folder: Path, file: str) -> Iterator[None]:
    """Converts any exception raised while reading a file to a ConfigError that names the file."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(
            f"reward model folder '{folder}': {file} cannot be read: {problem}; write the folder again with "
            "`titanrl export`."
        ) from None


def num_parameters(folder: str | Path) -> int:
    """Returns the number of parameters in the safetensors files of a model folder."""
    count = 0
    for path in Path(folder).glob("*.safetensors"):
        # Importing safetensors' reader (and numpy) takes longer than parsing all headers here.
        with path.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        count += sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    return count


def fingerprint(vocabulary: dict[str, int]) -> str:
    """Returns a digest of token -> id; two vocabularies have the same digest only if they are equal."""
    text = json.dumps(sorted(vocabulary.items(), key=lambda item: item[1]), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Scorer:
    """Unsharded reward model on this process's device, without gradients.

    Rows of similar length are batched together to reduce padding.
    """

    def __init__(
        self,
        folder: str,
        *,
        dtype: str = "float32",
        batch_tokens: int = BATCH_TOKENS,
        offload: bool = False,
    ) -> None:
        """Loads the model.

        Args:
            folder: model folder.
            dtype: name of the torch dtype of weights and computation.
            batch_tokens: largest number of tokens per forward pass, padding included; a longer row is a
                batch of its own.
            offload: keep the weights in CPU memory between calls.

        Raises:
            ConfigError: see ``facts_of``; or the head is not a single linear layer.
        """
        from transformers import AutoModelForSequenceClassification

        self.facts = facts_of(folder)
        is_gpu = torch.cuda.is_available()
        self._device = torch.device("cuda", torch.cuda.current_device()) if is_gpu else torch.device("cpu")
        model = AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=getattr(torch, dtype), trust_remote_code=False
        )
        if getattr(getattr(model, "score", None), "weight", None) is None:
            raise ConfigError(f"reward model '{folder}' has no head `score`; choose a decoder-only model.")
        model.to("cpu" if offload else self._device)
        self._model = model.eval().requires_grad_(False)
        self._batch_tokens = batch_tokens

    def __call__(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Returns the scores of all heads at the last token of each row, in order.

        Args:
            rows: token ids, at least one per row.
        """
        return [scores[0] for scores in self.scores_at(rows, [[len(row) - 1] for row in rows])]

    def scores_at(
        self, rows: Sequence[Sequence[int]], positions: Sequence[Sequence[int]]
    ) -> list[list[list[float]]]:
        """Returns the scores of all heads at the given positions of each row, in order.

        Args:
            rows: token ids, at least one per row.
            positions: positions in each row; a score has read the tokens up to its position.
        """
        scores: list[list[list[float]]] = [[] for _ in rows]
        backbone = self._model.base_model
        # Offloaded tensors are copied to the device; the copies are dropped afterwards.
        weights = {
            name: tensor.to(self._device)
            for name, tensor in (*backbone.named_parameters(), *backbone.named_buffers())
        }
        for indices in self._batches(rows):
            chosen = [positions[index] for index in indices]
            batch_scores = iter(self._score([rows[index] for index in indices], chosen, weights))
            for index, places in zip(indices, chosen, strict=True):
                scores[index] = [next(batch_scores) for _ in places]
        return scores

    def _batches(self, rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Yields the row indices of each batch, longest rows first, so that running out of memory happens
        at the start.
        """
        batch: list[int] = []
        for index in sorted(range(len(rows)), key=lambda index: -len(rows[index])):
            if batch and (len(batch) + 1) * len(rows[batch[0]]) > self._batch_tokens:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def _score(
        self,
        rows: Sequence[Sequence[int]],
        positions: Sequence[Sequence[int]],
        weights: dict[str, torch.Tensor],
    ) -> list[list[float]]:
        """Returns the scores at all positions of the first row, then of the second, and so on."""
        ids = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(rows):
            ids[index, : len(row)], mask[index, : len(row)] = torch.tensor(row), 1
        # The model's own search for the last token would mistake an end token for padding.
        row_index = torch.tensor([row for row, places in enumerate(positions) for _ in places])
        position = torch.tensor([place for places in positions for place in places])
        with torch.inference_mode():
            output = torch.func.functional_call(
                self._model.base_model,
                weights,
                kwargs={
                    "input_ids": ids.to(self._device),
                    "attention_mask": mask.to(self._device),
                    "use_cache": False,
                },
            )
            head = self._model.score.weight.to(self._device)
            hidden = output.last_hidden_state[row_index.to(self._device), position.to(self._device)]
            scores: list[list[float]] = (hidden.float() @ head.float().T).tolist()
        return scores


@cache
def scorer(folder: str, dtype: str, batch_tokens: int, offload: bool) -> Scorer:
    """Returns the process's scorer for these settings, loading it on the first call."""
    return Scorer(folder, dtype=dtype, batch_tokens=batch_tokens, offload=offload)
