"""Chat templates in the styles of model families: their delimiters, written for these tests."""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "ENDS",
    "NO_SYSTEM",
    "OPENS_THOUGHTS",
    "PRINTS_CALLS",
    "SPECIAL",
    "STRIPS_THOUGHTS",
    "TEMPLATES",
    "USES_TOOLS",
]

TEMPLATES: dict[str, str] = {
    path.stem.replace("_", " "): path.read_text(encoding="utf-8")
    for path in sorted(Path(__file__).parent.glob("*.jinja"))
}
"""Family -> Jinja template."""

USES_TOOLS = (
    "chatml",
    "deepseek-r1",
    "glm",
    "hermes tools",
    "llama3 tools",
    "mistral",
    "qwen2.5",
    "qwen3",
    "qwen3 thinking",
)
"""Families whose template renders the role `tool`."""

PRINTS_CALLS = ("glm", "hermes tools", "llama3 tools", "mistral", "qwen2.5", "qwen3", "qwen3 thinking")
"""Families whose template prints the tool calls of a message."""

NO_SYSTEM = ("gemma",)
"""Families whose template rejects the role `system`."""

OPENS_THOUGHTS = ("deepseek-r1", "keeps thoughts", "opens thoughts", "qwen3 thinking")
"""Families whose generation prompt opens a block of thoughts."""

STRIPS_THOUGHTS = ("deepseek-r1", "glm", "qwen3", "qwen3 thinking")
"""Families whose template removes the thoughts of earlier turns."""

ENDS = ("<|im_end|>", "<|eot_id|>", "<|end_of_sentence|>", "</s>", "<end_of_turn>", "<|end|>")
"""Tokens that end a turn; one of a tokenizer's vocabulary that ends a turn also ends a response."""

SPECIAL = (
    *ENDS,
    "<|im_start|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|User|>",
    "<|Assistant|>",
    "[INST]",
    "[/INST]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "<bos>",
    "<start_of_turn>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "[gMASK]",
    "<sop>",
    "<think>",
    "</think>",
)
"""Special tokens of the families."""
