"""A model folder's config.json, read key by key with messages that name the file; imports no framework."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from titanrl.errors import ConfigError

__all__ = [
    "LANGUAGE",
    "VALUE",
    "ConfigFile",
    "is_value_architecture",
    "num_labels",
    "read_count",
    "read_json",
    "value_model_keys",
]

LANGUAGE, VALUE = "ForCausalLM", "ForSequenceClassification"
"""Endings of transformers' class names: language models, and models with a scalar head."""


MAX_COUNT = 10**8
"""Largest number that a config.json may give for a size."""


class ConfigFile(NamedTuple):
    """The keys of a config.json, with the names that messages give to the file and its folder."""

    path: Path
    where: str
    """"model folder '...'"."""
    values: dict[str, Any]
    is_value_model: bool
    """Whether the architecture has a scalar head instead of the vocabulary's."""

    def count(self, key: str) -> int:
        """Returns an integer in [0, 10^8].

        Raises:
            ConfigError: the key is missing or has another value.
        """
        return read_count(self.values, key, self.where)

    def positive(self, key: str) -> int:
        """Returns an integer in [1, 10^8].

        Raises:
            ConfigError: the key is missing or has another value.
        """
        if (value := self.count(key)) < 1:
            raise ConfigError(f"{self.path} {key} must be >= 1, got {value}.")
        return value

    def require_false(self, *keys: str) -> None:
        """Refuses options that are not computed here.

        Raises:
            ConfigError: one of the keys is set to something true.
        """
        for key in keys:
            if self.values.get(key):
                raise ConfigError(f"{self.path} {key} must be false, got {self.values[key]}.")


def is_value_architecture(name: str) -> bool:
    """Whether transformers' class of that name has a scalar head instead of the vocabulary's."""
    return name.endswith(VALUE)


def num_labels(config: Mapping[str, Any]) -> int:
    """Returns the number of outputs of a classifier's head; transformers' default is 2."""
    return len(config.get("id2label") or ()) or int(config.get("num_labels", 2))


def value_model_keys(architectures: list[str], heads: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the keys in which a value model's config.json differs from its language model's.

    Args:
        architectures: transformers' class names of the language model.
        heads: names of the scalar heads if there are several.
    """
    names = [name.replace(LANGUAGE, VALUE) for name in architectures]
    labels = dict(enumerate(heads or ("LABEL_0",)))
    return {
        "architectures": names,
        "id2label": {str(number): name for number, name in labels.items()},
        "label2id": {name: number for number, name in labels.items()},
    }


def read_json(path: Path, where: str) -> dict[str, Any]:
    """Returns the object in a JSON file.

    Raises:
        ConfigError: the file is missing, or isn't a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{where} has no {path.name}; a Hugging Face model folder is needed.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: {path.name} is not JSON: {error}.") from None
    except OSError as error:
        raise ConfigError(f"{where}: {path.name} cannot be read: {error.strerror}.") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: {path.name} must hold an object, got {type(value).__name__}.")
    return value


def read_count(config: Mapping[str, Any], key: str, where: str) -> int:
    """Returns an integer in [0, 10^8] of a config.json.

    Raises:
        ConfigError: the key is missing or has another value.
    """
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        got = repr(value) if key in config else "nothing"
        limit = f" up to {MAX_COUNT}" if isinstance(value, int) and value > MAX_COUNT else ""
        raise ConfigError(
            f"{where}: config.json must give {key} as a whole number{limit}, got {got}; restore the "
            "config.json that belongs to the weights, or import the model again."
        )
    return value
