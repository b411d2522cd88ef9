"""Presets: the experiment files that come with the package, named ``titanrl:FOLDER/NAME.toml``."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path

from titanrl.errors import ConfigError, did_you_mean

__all__ = ["PREFIX", "locate", "preset_names", "summary"]

PREFIX = "titanrl:"
FOLDER = Path(__file__).parents[1] / "presets"
"""In a clone a link to experiments/, in a wheel a folder of the package."""
PARTS = ("", "algorithms", "compat")
"""Folders of presets; pyproject.toml lists the same ones."""


def preset_names() -> list[str]:
    """Returns the names of all presets, such as ``algorithms/grpo.toml``, folder by folder."""
    paths = [path for part in PARTS for path in sorted((FOLDER / part).glob("*.toml"))]
    return [path.relative_to(FOLDER).as_posix() for path in paths]


def locate(name: str | Path, folder: str | Path = "") -> Path:
    """Returns the path of an experiment file.

    Args:
        name: a path, or ``titanrl:`` and the name of a preset.
        folder: what a path is relative to; a preset does not depend on it.

    Raises:
        ConfigError: there is no such preset.
    """
    text = str(name)
    if not text.startswith(PREFIX):
        return Path(folder) / name
    known = {f"{PREFIX}{preset}": FOLDER / preset for preset in preset_names()}
    if text not in known:
        same_file = [preset for preset, path in known.items() if path.name == text.removeprefix(PREFIX)]
        near = did_you_mean(text, same_file or known) or ";"
        raise ConfigError(f"no such preset: {text}{near} `titanrl presets` lists them.")
    return known[text]


def summary(name: str) -> str:
    """Returns the first sentence of the comment that a preset begins with."""
    lines = locate(PREFIX + name).read_text("utf-8").splitlines()
    comment = [line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines)]
    text = " ".join(comment)
    sentence = re.match(r".{10,}?\.(?= )", text)  # "Dr. GRPO" does not end one.
    return sentence[0] if sentence else text
