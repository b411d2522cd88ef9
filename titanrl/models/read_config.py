"""Reads a Hugging Face folder's config.json into HFConfig; importing this loads no framework."""

from __future__ import annotations

from pathlib import Path

from titanrl.errors import ConfigError
from titanrl.models.config_file import ConfigFile, is_value_architecture, num_labels, read_json
from titanrl.models.family import resolve_family
from titanrl.models.hf_config import HFConfig

__all__ = ["read_config"]


def read_config(folder: str | Path) -> HFConfig:
    """Returns the facts of ``folder/config.json``.

    Raises:
        ConfigError: no such file; a model type, architecture, number of labels, bias, activation or rope
            that isn't computed here; a key that is missing or has another type.
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ConfigError(
            f"[model] path has no config.json, got {str(folder)!r}; give a Hugging Face folder, or fetch "
            "a model with `titanrl model get`."
        )
    where = f"model folder '{folder}'"
    values = read_json(path, where)
    family, architecture = resolve_family(values, where)
    is_value_model = is_value_architecture(architecture)
    if is_value_model and num_labels(values) != 1:
        raise ConfigError(
            f"{path} must have 1 label (id2label) to be a value model, got {num_labels(values)}."
        )
    try:
        config = family.read_config(ConfigFile(path, where, values, is_value_model))
    except ConfigError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"has no {error}" if isinstance(error, KeyError) else f"cannot be read: {error}"
        raise ConfigError(
            f"{where}: config.json {problem}; restore the config.json that belongs to the weights, or "
            "import the model again."
        ) from None
    assert (config.experts is not None) == family.has_experts, f"{family.name}: has_experts is wrong"
    return config
