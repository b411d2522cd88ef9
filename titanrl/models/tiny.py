"""A random tiny Llama or Qwen3 with a character tokenizer, saved as Hugging Face saves.

The model of the tests.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Literal

__all__ = ["CHAT_TEMPLATE", "CHARACTERS", "create"]

CHARACTERS = string.digits + string.ascii_letters + " .,:;?!+-*/=()<>[]{}'\"_#\n"
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
CHAT_TEMPLATE = (
    "<bos>{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<eos>{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""Each assistant turn ends with <eos>, and the generation prompt is what stands before one."""


def create(
    path: str | Path,
    *,
    characters: str = CHARACTERS,
    layers: int = 2,
    hidden: int = 32,
    heads: int = 4,
    kv_heads: int = 2,
    context: int = 256,
    tied: bool = True,
    family: Literal["llama", "qwen3"] = "llama",
    head: Literal["language", "value"] = "language",
    scale: float = 0.1,
    seed: int = 0,
) -> Path:
    """Writes the folder ``path`` (config.json, model.safetensors, tokenizer files) and returns it; about .1
    s.

    Args:
        characters: the vocabulary besides <pad> 0, <bos> 1, <eos> 2 and <unk> 3; padded to a multiple of 8.
        hidden: model width; the feed-forward is twice as wide.
        head: value: one number a position, as a critic or reward model gives it.
        scale: standard deviation of every weight; the larger, the farther from uniform the predictions.
        seed: of the weights; the global random state is left as it was.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(path, characters)
    import torch
    import transformers

    name = {"llama": "Llama", "qwen3": "Qwen3"}[family]
    kind = {"language": "ForCausalLM", "value": "ForSequenceClassification"}[head]
    model_class = getattr(transformers, f"{name}{kind}")
    config = getattr(transformers, f"{name}Config")(
        **({"num_labels": 1} if head == "value" else {}),
        vocab_size=-(-(len(characters) + len(SPECIAL)) // 8) * 8,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=scale,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model_class(config).save_pretrained(path)
    return path


def _write_tokenizer(path: Path, characters: str) -> None:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *characters))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(path)
