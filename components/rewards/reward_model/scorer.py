"""A frozen reward model in this process: token ids in, the scores of its heads out."""

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
"""Tokens that go through a model at a time, unless another number is given."""


class ModelFacts(NamedTuple):
    """What a reward model's files say, without loading a weight."""

    heads: tuple[str, ...]
    """Names of the numbers that it gives, in order."""
    max_length: int
    """Its context, tokens."""
    vocab_size: int
    vocabulary: str
    """Fingerprint of its tokenizer's vocabulary."""


def facts_of(folder: str | Path) -> ModelFacts:
    """Returns the facts of a folder of transformers' ...ForSequenceClassification.

    Raises:
        ConfigError: a missing or broken file, or another kind of model: its head would be drawn at random.
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
    """Raises ConfigError, naming the file, for whatever comes of reading it; tokenizers raises any kind."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(
            f"reward model folder '{folder}': {file} cannot be read: {what}; write the folder anew with "
            "`titanrl export`."
        ) from None


def num_parameters(folder: str | Path) -> int:
    """Returns how many numbers the safetensors of a model folder hold."""
    count = 0
    for path in Path(folder).glob("*.safetensors"):
        # By hand: safetensors' own reader imports numpy, which takes longer than all of this.
        with path.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        count += sum(math.prod(each["shape"]) for name, each in header.items() if name != "__metadata__")
    return count


def fingerprint(vocabulary: dict[str, int]) -> str:
    """Returns a digest of token -> id that two vocabularies share iff they are equal."""
    text = json.dumps(sorted(vocabulary.items(), key=lambda each: each[1]), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Scorer:
    """A reward model on this process's device, whole, without gradients.

    Rows of similar length go through it together, so little is padded.
    """

    def __init__(
        self,
        folder: str,
        *,
        dtype: str = "float32",
        batch_tokens: int = BATCH_TOKENS,
        offload: bool = False,
    ) -> None:
        """Args:
            dtype: of weights and computation, a name of torch's. batch_tokens: most tokens of a batch,
                padding included; a longer row goes alone. offload: whether the weights wait in CPU memory
                between two calls.

        Raises:
            ConfigError: see ``facts_of``; a head that is no plain matrix.
        """
        from transformers import AutoModelForSequenceClassification

        self.facts = facts_of(folder)
        is_gpu = torch.cuda.is_available()
        self._device = torch.device("cuda", torch.cuda.current_device()) if is_gpu else torch.device("cpu")
        model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=getattr(torch, dtype))
        if getattr(getattr(model, "score", None), "weight", None) is None:
            raise ConfigError(f"reward model '{folder}' has no head `score`; choose a decoder-only one.")
        model.to("cpu" if offload else self._device)
        self._model = model.eval().requires_grad_(False)
        self._batch_tokens = batch_tokens

    def __call__(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Returns the heads' scores of each row at its last token, in order.

        Args:
            rows: token ids, >= 1 each.
        """
        scores: list[list[float]] = [[] for _ in rows]
        body = self._model.base_model
        # Copies of what waits elsewhere; they are dropped afterwards, as weights do not change.
        weights = {
            name: tensor.to(self._device)
            for name, tensor in (*body.named_parameters(), *body.named_buffers())
        }
        for numbers in self._batches(rows):
            found = self._score([rows[number] for number in numbers], weights)
            for number, score in zip(numbers, found, strict=True):
                scores[number] = score
        return scores

    def _batches(self, rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Yields the numbers of the rows of each batch, the longest first: what is too much fails at once."""
        batch: list[int] = []
        for number in sorted(range(len(rows)), key=lambda each: -len(rows[each])):
            if batch and (len(batch) + 1) * len(rows[batch[0]]) > self._batch_tokens:
                yield batch
                batch = []
            batch.append(number)
        if batch:
            yield batch

    def _score(self, rows: Sequence[Sequence[int]], weights: dict[str, torch.Tensor]) -> list[list[float]]:
        ids = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(rows):
            ids[index, : len(row)], mask[index, : len(row)] = torch.tensor(row), 1
        # Not the model's own choice of the last token: that takes an end token for padding.
        last = (mask.sum(1) - 1).to(self._device)
        with torch.inference_mode():
            body = torch.func.functional_call(
                self._model.base_model,
                weights,
                kwargs={
                    "input_ids": ids.to(self._device),
                    "attention_mask": mask.to(self._device),
                    "use_cache": False,
                },
            )
            head = self._model.score.weight.to(self._device)
            hidden = body.last_hidden_state[torch.arange(len(rows), device=self._device), last]
            scores: list[list[float]] = (hidden.float() @ head.float().T).tolist()
        return scores


@cache
def scorer(folder: str, dtype: str, batch_tokens: int, offload: bool) -> Scorer:
    """Returns the one scorer of its kind in this process."""
    return Scorer(folder, dtype=dtype, batch_tokens=batch_tokens, offload=offload)
