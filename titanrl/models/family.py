"""The record of a model family and the registry of records; importing this loads no framework.

A file in ``titanrl/models/families`` gives its record as ``FAMILY``; a plug-in calls ``register_family``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from titanrl.errors import ConfigError, did_you_mean
from titanrl.models.config_file import LANGUAGE, VALUE, ConfigFile
from titanrl.models.hf_config import HFConfig
from titanrl.registry.catalog import load_entry_points

if TYPE_CHECKING:
    from torchtitan.models.common.attention import BaseAttention
    from torchtitan.models.common.decoder import Decoder, TransformerBlock
    from torchtitan.protocols.module import Module
    from torchtitan.protocols.state_dict_adapter import StateDictAdapter

__all__ = [
    "ModelFamily",
    "TinySizes",
    "TorchTitanModel",
    "families",
    "family_of",
    "register_family",
    "resolve_family",
]

FOLDER = "titanrl.models.families"


class TorchTitanModel(NamedTuple):
    """TorchTitan's classes and functions for a family."""

    model: type[Decoder]
    block: type[TransformerBlock]
    """A layer of the model."""
    adapter: type[StateDictAdapter]
    """Translates between TorchTitan's and Hugging Face's names of weights."""
    parallelize: Callable[..., Decoder]
    """TorchTitan's ``parallelize_fn``."""
    set_sharding: Callable[..., None]
    """(model config, enable_sp, enable_ep): writes the tensor- and expert-parallel placements."""
    attention: Callable[[HFConfig, Module.Config, int], BaseAttention.Config]
    """(config, inner attention, positions of the rotary table) -> the attention of a layer."""


class TinySizes(NamedTuple):
    """Sizes of a random tiny model."""

    hidden: int
    heads: int
    kv_heads: int
    experts: int
    tied: bool

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """Everything in which one family of models differs from the others."""

    name: str
    """Also the name of its TorchTitan spec."""
    model_types: tuple[str, ...]
    """Values of config.json's ``model_type``."""
    class_name: str
    """Beginning of transformers' class names: "X" for XConfig and XForCausalLM."""
    read_config: Callable[[ConfigFile], HFConfig]
    """Reads config.json; refuses what isn't computed with ConfigError."""
    torchtitan: Callable[[], TorchTitanModel]
    """Imports TorchTitan's classes and functions."""
    has_experts: bool = False
    """Whether layers may have experts, so that expert parallelism applies."""
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    """Values of [training] mixed_precision_param in which the family computes correctly."""
    shardable_heads: Callable[[HFConfig], int]
    """Number of heads that tensor_parallel_degree must divide."""
    attention_parameters: Callable[[HFConfig], int]
    """Parameters of the attention of a layer."""
    attention_activations: Callable[[HFConfig], int]
    """Float32 numbers per token that the attention of a layer keeps for the backward pass."""
    tiny_config: Callable[[TinySizes], dict[str, Any]]
    """Keyword arguments of transformers' config class for a tiny model, besides those of every decoder."""

    @property
    def architectures(self) -> tuple[str, str]:
        """Transformers' class names of the language model and of the value model."""
        return self.class_name + LANGUAGE, self.class_name + VALUE


_families: dict[str, ModelFamily] = {}
_is_loaded = False


def register_family(family: ModelFamily) -> None:
    """Adds a plug-in's record to those by which models are read, built and estimated.

    Raises:
        ValueError: another family has one of its model types.
    """
    _load_folder()
    for model_type in family.model_types:
        other = _families.get(model_type)
        if other is not None and other != family:
            raise ValueError(
                f"model_type {model_type!r} of family {family.name!r} is already registered by family "
                f"{other.name!r}; choose another one."
            )
    _families.update(dict.fromkeys(family.model_types, family))


def families() -> list[ModelFamily]:
    """Returns every registered family once, those of installed packages too, by name."""
    _load_folder()
    load_entry_points()
    return sorted({family.name: family for family in _families.values()}.values(), key=lambda each: each.name)


def family_of(model_type: str) -> ModelFamily:
    """Returns the family of a ``model_type``.

    Raises:
        ConfigError: no family has it; the message holds the nearest one and the list.
    """
    _load_folder()
    if model_type not in _families:
        load_entry_points()
    if model_type not in _families:
        known = sorted(_families)
        raise ConfigError(
            f"model_type {model_type!r} is not supported{did_you_mean(str(model_type), known) or ';'} "
            f"supported: {', '.join(known)}."
        )
    return _families[model_type]


def resolve_family(config: Mapping[str, Any], where: str) -> tuple[ModelFamily, str]:
    """Returns the family of a config.json and its architecture, one of the family's two.

    Args:
        config: keys of the config.json.
        where: name of the folder in messages.

    Raises:
        ConfigError: an unknown model_type, or another architecture than the family's.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ConfigError(
            f"{where}: config.json must give model_type as a string, got {model_type!r}; restore the "
            "config.json that belongs to the weights, or import the model again."
        )
    try:
        family = family_of(model_type)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    named = config.get("architectures") or ["none"]
    names = [str(name) for name in (named if isinstance(named, list) else [named])]
    for name in names:
        if name in family.architectures:
            return family, name
    nearest = did_you_mean(names[0], family.architectures) or ";"
    raise ConfigError(
        f"{where}: architecture {names[0]!r} is not supported{nearest} supported for model_type "
        f"{model_type!r}: {', '.join(family.architectures)}."
    )


def _load_folder() -> None:
    """Adds the record of every file of the folder of families, once."""
    global _is_loaded
    if _is_loaded:
        return
    package = importlib.import_module(FOLDER)
    for file in pkgutil.iter_modules(package.__path__):
        family: ModelFamily = importlib.import_module(f"{FOLDER}.{file.name}").FAMILY
        _families.update(dict.fromkeys(family.model_types, family))
    _is_loaded = True
