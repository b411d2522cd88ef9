"""Speed of a whole GRPO step against TRL's GRPOTrainer: sample, score, update, weights to the sampler.

8 prompts x 8 answers x 64 tokens, 135M parameters, one AdamW update, no reference, all threads. The two take
turns: TRL's trainer runs, and ours steps between its steps, so that both see the same machine. TRL runs at
the setting that was fastest on CPUs: weights in the fast precision, `generate`, micro-batches of 8, no
recomputation. Run: ``make bench PYTEST_ARGS=benchmarks/test_bench_step.py``; it takes minutes.
"""

from __future__ import annotations

import importlib.util
import json
import re
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from titanrl.loop.loop import train_step
from titanrl.loop.prompts import training_prompts
from titanrl.loop.run import Clock
from titanrl.loop.session import Session, open_session
from titanrl.loop.stages import sync

MODEL = Path(__file__).parents[1] / "models" / "smollm2-135m"
PROMPTS, SAMPLES, TOKENS, ROUNDS = 8, 8, 64, 4
PATTERN = r".*[a-m]\W*"
"""What is rewarded: an answer whose last letter is in the alphabet's first half; about every second one."""
NO_END = 49151
"""An id that is practically never sampled stands for the end token, so that every answer gets its 64."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not MODEL.is_dir(), reason="needs `titanrl model get smollm2-135m`"),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM"),
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs TRL: `make bench` installs it"),
]


def test_a_step_is_faster_than_trl(tmp_path: Path, benchmark: Any) -> None:
    dtype = "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"
    model = endless_model(tmp_path / "model")
    chats = [[{"role": "user", "content": f"What is {i} + {3 * i}? Explain each step."}] for i in range(8)]
    seconds: dict[str, list[float]] = {"ours": [], "trl": []}
    parts: list[dict[str, float]] = []
    with closing(our_session(model, chats, dtype, tmp_path)) as session:

        def ours() -> None:
            step, clock = session.state.step, Clock()
            began = time.perf_counter()
            metrics, _ = train_step(session, step, clock)
            session.state.step = step + 1
            with clock("sync"):
                sync(session, version=step + 1)
            seconds["ours"].append(time.perf_counter() - began)
            parts.append(clock.seconds)
            assert metrics["sample/tokens"] == PROMPTS * SAMPLES * TOKENS
            assert metrics["update/skipped"] == 0
            # bfloat16 rounds logits of 30 to steps of an eighth, in sampler and trainer alike.
            assert metrics["sample/logprob_gap"] < (1e-4 if dtype == "float32" else 6e-2)

        ours()
        if benchmark.disabled:
            return
        seconds["trl"] = trl_steps(model, chats, dtype, tmp_path, between=ours)
    # The first step of each warms up.
    pairs = list(zip(seconds["trl"][1:], seconds["ours"][2:], strict=True))
    ratio = statistics.median(peer / own for peer, own in pairs)
    benchmark.extra_info.update(
        seconds=seconds, stages=parts[2:], ratio=ratio, dtype=dtype, threads=torch.get_num_threads(),
        torch=torch.__version__,
    )  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)
    print(json.dumps(benchmark.extra_info, indent=2))
    assert ratio >= 1.3, benchmark.extra_info


def our_session(model: Path, chats: list[Any], dtype: str, folder: Path) -> Session:
    from titanrl.config.experiment import Experiment
    from titanrl.engine import start

    prompts = folder / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"messages": chat}) for chat in chats))
    experiment = Experiment.from_table(
        {
            "model": {"path": str(model)},
            "prompts": {"name": "jsonl", "path": str(prompts)},
            "sampler": {"name": "vllm", "max_response_tokens": TOKENS},
            "reward": [{"name": "format_regex", "pattern": PATTERN}],
            "algorithm": {
                "advantage": {"name": "grpo"},
                "loss": {"name": "ppo_clip"},
                "aggregation": {"name": "sequence_mean"},
            },
            "loop": {"steps": 100, "prompts_per_step": PROMPTS, "samples_per_prompt": SAMPLES},
            "training": {"seq_len": 256, "max_tokens_per_microbatch": 8192, "mixed_precision_param": dtype},
            "optimizer": {"lr": 1e-6},
        }
    )
    start()
    session = open_session(experiment, folder, training_prompts, resume=False)
    sync(session, version=0)
    return session


def trl_steps(
    model: Path, chats: list[Any], dtype: str, folder: Path, between: Callable[[], None]
) -> list[float]:
    """Returns the seconds of each of TRL's steps; ``between`` is called after each."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Turns(TrainerCallback):  # type: ignore[misc]
        began = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.began)
            between()

    def reward(completions: list[list[dict[str, str]]], **_: Any) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        return [float(re.fullmatch(PATTERN, text, re.DOTALL) is not None) for text in texts]

    seconds: list[float] = []
    trainer = GRPOTrainer(
        model=str(model),
        reward_funcs=reward,
        train_dataset=Dataset.from_list([{"prompt": chat} for chat in chats]),
        callbacks=[Turns()],
        args=GRPOConfig(
            output_dir=str(folder / "trl"), use_cpu=True, model_init_kwargs={"dtype": dtype}, bf16=False,
            per_device_train_batch_size=8, gradient_accumulation_steps=PROMPTS, num_generations=SAMPLES,
            max_completion_length=TOKENS, beta=0.0, loss_type="grpo", learning_rate=1e-6,
            gradient_checkpointing=False, max_steps=ROUNDS, save_strategy="no", report_to=[],
            logging_steps=1, disable_tqdm=True, dataloader_pin_memory=False,
        ),
    )  # fmt: skip
    trainer.train()
    length = trainer.state.log_history[0]["completions/mean_length"]
    assert length == TOKENS, length
    return seconds


def endless_model(folder: Path) -> Path:
    """Returns a folder with the model's weights whose end token is one that is never sampled."""
    folder.mkdir()
    for path in MODEL.iterdir():
        (folder / path.name).symlink_to(path.resolve())
    token = json.loads((MODEL / "tokenizer.json").read_text())["model"]["vocab"]
    name = next(text for text, index in token.items() if index == NO_END)
    for file, value in (
        ("config.json", NO_END),
        ("generation_config.json", NO_END),
        ("tokenizer_config.json", name),
    ):
        path = folder / file
        if path.exists():
            table = json.loads(path.read_text())
            path.unlink()
            table["eos_token" if file == "tokenizer_config.json" else "eos_token_id"] = value
            path.write_text(json.dumps(table))
    return folder
