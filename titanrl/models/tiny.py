"""A random tiny model of each family with a character tokenizer, saved as Hugging Face saves.

The model of the tests.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any, Literal

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
    family: Literal["llama", "qwen3", "qwen3_moe", "deepseek_v3"] = "llama",
    experts: int = 4,
    head: Literal["language", "value"] = "language",
    scale: float = 0.1,
    seed: int = 0,
) -> Path:
    """Writes the folder ``path`` (config.json, model.safetensors, tokenizer files) and returns it; about .1
    s.

    Args:
        characters: the vocabulary besides <pad> 0, <bos> 1, <eos> 2 and <unk> 3; padded to a multiple of 8.
        hidden: model width; the feed-forward is twice as wide, an expert half.
        kv_heads, tied: deepseek_v3 has neither fewer heads for keys nor a tied head.
        experts: of the last two families, 2 of which compute each token; an even number for deepseek_v3,
            whose first layer is dense.
        head: value: one number a position, as a critic or reward model gives it.
        scale: standard deviation of every weight; the larger, the farther from uniform the predictions.
        seed: of the weights; the global random state is left as it was.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(path, characters)
    import torch
    import transformers

    prefix = {"llama": "Llama", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe", "deepseek_v3": "DeepseekV3"}[
        family
    ]
    kind = {"language": "ForCausalLM", "value": "ForSequenceClassification"}[head]
    model_class = getattr(transformers, f"{prefix}{kind}")
    head_dim = hidden // heads
    sizes: dict[str, Any] = {
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "tie_word_embeddings": tied,
    }
    if family in ("qwen3_moe", "deepseek_v3"):
        sizes |= {"moe_intermediate_size": hidden // 2, "num_experts_per_tok": 2, "norm_topk_prob": True}
    if family == "qwen3_moe":
        sizes |= {"num_experts": experts}
    if family == "deepseek_v3":
        sizes |= {
            "num_key_value_heads": heads, "tie_word_embeddings": False, "n_routed_experts": experts,
            "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
            "q_lora_rank": hidden // 2, "kv_lora_rank": hidden // 2, "qk_nope_head_dim": head_dim,
            "qk_rope_head_dim": head_dim, "v_head_dim": head_dim,
        }  # fmt: skip
    config = getattr(transformers, f"{prefix}Config")(
        **({"num_labels": 1} if head == "value" else {}),
        **sizes,
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
        model = model_class(config)
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
