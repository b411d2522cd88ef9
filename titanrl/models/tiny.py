"""A random tiny model of any family with a character tokenizer: the model of the tests."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Literal

from titanrl.models.families import TINY
from titanrl.models.family import TinySizes, family_of

__all__ = ["CHAT_TEMPLATE", "CHARACTERS", "create"]

CHARACTERS = string.digits + string.ascii_letters + " .,:;?!+-*/=()<>[]{}'\"_#\n"
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
CHAT_TEMPLATE = (
    "<bos>{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<eos>{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""Each assistant turn ends with <eos>; the generation prompt is the text before such a turn."""


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
    model_type: str = TINY,
    experts: int = 4,
    head: Literal["language", "value"] = "language",
    scale: float = 0.1,
    seed: int = 0,
) -> Path:
    """Writes the folder ``path`` (config.json, model.safetensors, tokenizer files) and returns it.

    Takes about 0.1 s.

    Args:
        path: the folder; made if it doesn't exist.
        characters: the vocabulary besides <pad> 0, <bos> 1, <eos> 2 and <unk> 3; padded to a multiple of 8.
        layers: number of layers.
        hidden: model width; the feed-forward is twice as wide, an expert half.
        heads: heads of queries.
        kv_heads: heads of keys and values, for families that may have fewer.
        context: longest sequence, tokens.
        tied: whether the head is the embedding's matrix, for families that may share it.
        model_type: selects the family.
        experts: number of experts, an even number, for families that have them; 2 compute each token.
        head: "value" gives one number per position, as of a critic or reward model.
        scale: standard deviation of every weight; the larger, the farther from uniform the predictions.
        seed: of the weights; the global random state is left as it was.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(path, characters)
    import torch
    import transformers

    family = family_of(model_type)
    architecture = family.architectures[0 if head == "language" else 1]
    sizes = TinySizes(hidden=hidden, heads=heads, kv_heads=kv_heads, experts=experts, tied=tied)
    config = getattr(transformers, f"{family.class_name}Config")(
        **({"num_labels": 1} if head == "value" else {}),
        **family.tiny_config(sizes),
        vocab_size=-(-(len(characters) + len(SPECIAL)) // 8) * 8,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=context,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=scale,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, architecture)(config)
        for name, bias in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                bias.normal_(std=scale)
        model.save_pretrained(path)
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
