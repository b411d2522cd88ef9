"""Measures the difference of log-probs between trainer and sampler in bfloat16, with both heads.

Usage: ``python -m tools.head_mismatch MODEL [--sampler torch|vllm] [--tokens 32]`` prints mean and maximum
in nats.
"""

from __future__ import annotations

import argparse
from typing import Any, Literal

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import torch

from titanrl.components.samplers.torch import Torch
from titanrl.components.samplers.vllm import VLLM
from titanrl.config.engine_tables import Training
from titanrl.data.collate import collate_rollouts
from titanrl.data.tokenizer import ChatTokenizer
from titanrl.engine import Engine, EngineConfig
from titanrl.protocols import RolloutRequest
from titanrl.rollout.context import start_sampler

HEADS: tuple[Literal["float32"] | None, ...] = (None, "float32")
QUESTIONS = (
    "What is 17 + 25?",
    "Name three rivers of Europe.",
    "Write a short poem about snow.",
    "Why is the sky blue?",
)


def measure(model: str, sampler: str, tokens: int, head_dtype: Literal["float32"] | None) -> torch.Tensor:
    """Returns the absolute differences at the sampled tokens, nats."""
    tokenizer = ChatTokenizer(model)
    training = Training(seq_len=256, mixed_precision_param="bfloat16")
    engine = Engine(EngineConfig(model=model, head_dtype=head_dtype, training=training))
    kind: Any = Torch if sampler == "torch" else VLLM
    live = start_sampler(
        kind(max_response_tokens=tokens),
        engine,
        tokenizer,
        training=training,
        model_path=model,
        seed=0,
        head_dtype=head_dtype,
        num_rows=2 * len(QUESTIONS),
    )
    live.load(engine.weights(live.weight_dtype), version=0)
    prompts = [
        tokenizer.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in QUESTIONS
    ]
    requests = [RolloutRequest(ids, group, index) for group, ids in enumerate(prompts) for index in range(2)]
    completions = live.sample(requests, step=0, seed=0)
    batch = collate_rollouts(requests, completions, decode=str, version=0)
    scored = engine.score(batch)["logprob"]
    live.close()
    engine.close()
    gap: torch.Tensor = (scored - batch["sampler_logprob"])[batch["loss_mask"]].abs()
    return gap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--sampler", choices=("torch", "vllm"), default="torch")
    parser.add_argument("--tokens", type=int, default=32)
    arguments = parser.parse_args()
    for head_dtype in HEADS:
        gap = measure(arguments.model, arguments.sampler, arguments.tokens, head_dtype)
        print(
            f"{arguments.sampler}, head in {head_dtype or 'bfloat16'}: mean {gap.mean():.5f}, maximum "
            f"{gap.max():.5f} nats over {len(gap)} tokens"
        )


if __name__ == "__main__":
    main()
