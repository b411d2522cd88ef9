"""mkdocs: links that leave docs/ become plain code, after a check that they lead to a file of the project."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

LOG = logging.getLogger("mkdocs.hooks.links")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    docs = Path(config["docs_dir"]).resolve()
    folder = (docs / page.file.src_uri).parent

    def replaced(match: re.Match[str]) -> str:
        text, target = match[1], (folder / match[2]).resolve()
        if target.is_relative_to(docs):
            return match[0]
        if not target.exists():
            # A warning fails the strict build.
            LOG.warning("%s links to %s, which does not exist", page.file.src_uri, match[2])
        return text if text.startswith("`") else f"`{text}`"

    parts = FENCE.split(markdown)
    return "".join(part if i % 2 else LINK.sub(replaced, part) for i, part in enumerate(parts))
