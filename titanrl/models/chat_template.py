"""The chat template in a model folder."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["write_chat_template"]


def write_chat_template(folder: Path, template: str) -> None:
    """Makes ``template`` the chat template of a model folder, instead of its tokenizer's own.

    Args:
        folder: a model folder.
        template: Jinja.
    """
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    path = folder / "tokenizer_config.json"
    if path.is_file():
        config = json.loads(path.read_text(encoding="utf-8"))
        if config.pop("chat_template", None) is not None:  # two templates would contradict each other
            path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
