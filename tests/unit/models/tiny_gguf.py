"""Writes a tiny Llama as a GGUF file with llama.cpp's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

WIDTH, HEADS, LAYERS, HIDDEN = 32, 2, 1, 64
TOKENS = ["<unk>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyzĠ", "ab", "<|endoftext|>"]
NAMES = {
    "attn_q": ("self_attn.q_proj", (WIDTH, WIDTH)),
    "attn_k": ("self_attn.k_proj", (WIDTH, WIDTH)),
    "attn_v": ("self_attn.v_proj", (WIDTH, WIDTH)),
    "attn_output": ("self_attn.o_proj", (WIDTH, WIDTH)),
    "ffn_gate": ("mlp.gate_proj", (HIDDEN, WIDTH)),
    "ffn_up": ("mlp.up_proj", (HIDDEN, WIDTH)),
    "ffn_down": ("mlp.down_proj", (WIDTH, HIDDEN)),
    "attn_norm": ("input_layernorm", (WIDTH,)),
    "ffn_norm": ("post_attention_layernorm", (WIDTH,)),
}


def permuted(weight: np.ndarray) -> np.ndarray:
    """Returns a matrix with rotary halves interleaved, as llama.cpp stores them."""
    return weight.reshape(HEADS, 2, WIDTH // HEADS // 2, WIDTH).swapaxes(1, 2).reshape(weight.shape)


def write(gguf: Any, path: Path) -> dict[str, np.ndarray]:
    """Writes the file and returns the weights by their Hugging Face names."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    weights = {}

    def add(name: str, target: str, shape: tuple[int, ...]) -> None:
        value = random.normal(size=shape).astype(np.float32)
        weights[target] = value
        writer.add_tensor(name, permuted(value) if "attn_q" in name or "attn_k" in name else value)

    add("token_embd.weight", "model.embed_tokens.weight", (len(TOKENS), WIDTH))
    add("output.weight", "lm_head.weight", (len(TOKENS), WIDTH))
    add("output_norm.weight", "model.norm.weight", (WIDTH,))
    for layer in range(LAYERS):
        for name, (target, shape) in NAMES.items():
            add(f"blk.{layer}.{name}.weight", f"model.layers.{layer}.{target}.weight", shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights
