"""Speed and memory of a complete GRPO step relative to TRL: sample, score, update, sync weights.

8 prompts x 8 responses, 135M parameters, one AdamW update, no reference, all threads. Both alternate on the
same machine: our steps run between the steps of TRL's trainer. TRL uses its fastest settings on CPUs: weights
in the named precision, `generate`, micro-batches of 8, no recomputation. Ours computes in bfloat16 if the CPU
has bfloat16 units, from float32 weights, in compiled blocks. Run: ``make bench ONLY=step``; it takes 15
minutes.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from tensordict import TensorDict

from benchmarks.smollm2 import MODEL, NO_TOKEN, fast_dtype, needs_model, needs_vllm
from titanrl import register
from titanrl.components.rewards.text import texts
from titanrl.data.prompts import training_prompts
from titanrl.engine.host_memory import resident_bytes
from titanrl.training.online import train_step
from titanrl.training.run import StageTimer
from titanrl.training.session import Session, open_session
from titanrl.training.stages import sync

PROMPTS, SAMPLES, ROUNDS = 8, 8, 4
PATTERN = r".*[a-m]\W*"
"""Rewarded responses: the last letter is in the first half of the alphabet, as in about half of them."""
GROUP = 600
"""Maximum number of distinct tokens of a prompt and its responses."""


@register("reward", "bench_every_second_prompt")
@dataclass(frozen=True, slots=True, kw_only=True)
class EverySecondPrompt:
    """Whether the response matches PATTERN; 0 for every second prompt."""

    in_keys: ClassVar = (("text", "response"), "group_id")

    def __call__(self, batch: TensorDict) -> torch.Tensor:
        matches = [re.fullmatch(PATTERN, text, re.DOTALL) is not None for text in texts(batch, "response")]
        return torch.tensor(matches).float() * (batch["group_id"] % 2)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.timeout(3600),
    needs_model,
    needs_vllm,
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs TRL: `make bench` installs it"),
]


class Case(NamedTuple):
    tokens: int
    """Tokens of each response."""
    trl_dtype: str
    at_least: float
    """Ratio of TRL's time to ours."""


CASES = {
    "bfloat16": Case(64, "bfloat16", 2.0),
    "float32": Case(64, "float32", 2.8),
    "short": Case(12, "bfloat16", 2.5),
}
"""TRL at its fastest, TRL in full precision, and responses as long as those of the quickstart."""


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_faster_than_trl(name: str, tmp_path: Path, benchmark: Any) -> None:
    case = CASES[name]
    if case.trl_dtype == "bfloat16" and fast_dtype() != "bfloat16":
        pytest.skip("this CPU emulates bfloat16")
    model = endless_model(tmp_path / "model")
    with closing(our_session(model, case.tokens, tmp_path)) as session:
        ours = Steps(session, case.tokens)
        ours()
        if benchmark.disabled:
            return
        peer, peer_stages = trl_steps(model, case.tokens, case.trl_dtype, tmp_path, between=ours)
    # The first step of each warms up.
    ratio = statistics.median(theirs / own for theirs, own in zip(peer[1:], ours.seconds[2:], strict=True))
    benchmark.extra_info.update(
        seconds={"ours": ours.seconds, "trl": peer},
        ratio=ratio,
        dtype=fast_dtype(),
        trl_dtype=case.trl_dtype,
        stages={"ours": medians(ours.stages[2:]), "trl": medians(peer_stages[1:])},
        threads=torch.get_num_threads(),
        torch=torch.__version__,
    )
    benchmark.pedantic(lambda: None, rounds=1)
    print(json.dumps(benchmark.extra_info, indent=2))
    assert ratio >= case.at_least, benchmark.extra_info


def test_rows_without_advantage_can_be_skipped(tmp_path: Path, benchmark: Any) -> None:
    """The responses of every second prompt have equal rewards: the update without these relative to all."""
    model = endless_model(tmp_path / "model")
    steps = {}
    for skip in (False, True):
        folder = tmp_path / str(skip)
        folder.mkdir()
        with closing(our_session(model, 64, folder, skip=skip)) as session:
            steps[skip] = Steps(session, 64)
            for _ in range(2 if benchmark.disabled else 4):
                steps[skip]()
    # The first step of each warms up.
    update = {skip: [stages["update"] for stages in done.stages[1:]] for skip, done in steps.items()}
    benchmark.extra_info.update(
        seconds={"ours": update[True], "all rows": update[False]},
        ratio=statistics.median(update[False]) / statistics.median(update[True]),
        tokens={skip: done.computed for skip, done in steps.items()},
    )
    benchmark.pedantic(lambda: None, rounds=1)
    assert sum(steps[True].computed) < sum(steps[False].computed)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_step_takes_no_more_memory_than_trl(dtype: str, tmp_path: Path, benchmark: Any) -> None:
    """Peak resident memory of two steps, with each trainer in separate processes.

    In both, weights, gradients and moments have the named precision, and a micro-batch is the eight responses
    to one prompt.
    """
    if benchmark.disabled:
        pytest.skip("nothing to check without measuring")
    if dtype == "bfloat16" and fast_dtype() != "bfloat16":
        pytest.skip("this CPU emulates bfloat16")
    model = endless_model(tmp_path / "model")
    peaks = {who: in_a_process(peak, who, dtype, model, tmp_path) for who in ("ours", "trl")}
    benchmark.extra_info.update(
        memory_mib={name: peak.mib for name, peak in peaks.items()},
        seconds={name: [peak.seconds] for name, peak in peaks.items()},
        ratio={"trl": peaks["trl"].mib / peaks["ours"].mib},
        dtype=dtype,
    )
    benchmark.pedantic(lambda: None, rounds=1)
    print(json.dumps(benchmark.extra_info, indent=2))
    assert peaks["ours"].mib <= peaks["trl"].mib, peaks


class Peak(NamedTuple):
    mib: float
    """Peak memory of the process and its children, MiB."""
    seconds: float
    """Time of the second step."""


def in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def peak(who: str, dtype: str, model: Path, folder: Path) -> Peak:
    import psutil

    def held() -> float:
        others = psutil.Process().children(recursive=True)
        return (resident_bytes("VmHWM") + sum(other.memory_info().rss for other in others)) / 2**20

    if who == "trl":
        seconds, _ = trl_steps(model, 64, dtype, folder, between=lambda: None, steps=2)
        return Peak(held(), seconds[-1])
    with closing(our_session(model, 64, folder, pure=dtype)) as session:
        steps = Steps(session, 64)
        for _ in range(2):
            steps()
        return Peak(held(), steps.seconds[-1])


class Steps:
    """Our steps, timed in total and by stage."""

    def __init__(self, session: Session, tokens: int) -> None:
        self.seconds: list[float] = []
        self.stages: list[dict[str, float]] = []
        self.computed: list[float] = []
        """Distinct tokens in each update."""
        self._session, self._tokens = session, tokens

    def __call__(self) -> None:
        session, clock = self._session, StageTimer()
        step = session.state.step
        began = time.perf_counter()
        metrics, _ = train_step(session, step, clock)
        session.state.step = step + 1
        with clock("sync"):
            sync(session, version=step + 1)
        self.seconds.append(time.perf_counter() - began)
        self.stages.append(clock.seconds)
        self.computed.append(metrics["update/computed_tokens"])
        assert metrics["sample/tokens"] == PROMPTS * SAMPLES * self._tokens
        assert metrics["update/skipped"] == 0
        # bfloat16 rounds logits around 30 to multiples of 1/8, in sampler and trainer.
        assert metrics["sample/logprob_diff"] < (1e-4 if fast_dtype() == "float32" else 6e-2)


def medians(stages: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(step[name] for step in stages) for name in stages[0]}


def chats() -> list[Any]:
    return [
        [{"role": "user", "content": f"What is {i} + {3 * i}? Explain each step."}] for i in range(PROMPTS)
    ]


def our_session(
    model: Path, tokens: int, folder: Path, *, skip: bool | None = None, pure: str | None = None
) -> Session:
    """Returns a session about to make its first step.

    Args:
        skip: whether rows with zero advantage, half of the rows of a step, are skipped.
        pure: precision of weights and computation, with micro-batches as small as TRL's; None: float32
            weights and computation in the fastest precision.
    """
    from titanrl.config.experiment import Experiment
    from titanrl.engine import init_distributed

    prompts = folder / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"messages": chat}) for chat in chats()))
    rewards: list[Any] = [{"name": "format_regex", "pattern": PATTERN}]
    loop = {"steps": 100, "prompts_per_step": PROMPTS, "samples_per_prompt": SAMPLES}
    training: dict[str, Any] = {"max_tokens_per_microbatch": 8192, "mixed_precision_param": fast_dtype()}
    if pure is not None:
        training = {"max_tokens_per_microbatch": GROUP, "dtype": pure, "mixed_precision_param": pure}
    if skip is not None:
        loop["skip_zero_advantage"] = skip
        rewards = [{"name": "bench_every_second_prompt"}]
    experiment = Experiment.from_table(
        {
            "model": {"path": str(model)},
            "prompts": {"name": "jsonl", "path": str(prompts)},
            "sampler": {"name": "vllm", "max_response_tokens": tokens},
            "reward": rewards,
            "algorithm": {
                "advantage": {"name": "grpo"},
                "loss": {"name": "ppo_clip"},
                "aggregation": {"name": "sequence_mean"},
            },
            "loop": loop,
            "training": training | {"seq_len": 256},
            "compile": {"enable": True, "components": ["model"]},
            "optimizer": {"lr": 1e-6},
        }
    )
    init_distributed()
    session = open_session(experiment, folder, training_prompts, resume=False)
    sync(session, version=0)
    return session


def trl_steps(
    model: Path, tokens: int, dtype: str, folder: Path, between: Callable[[], None], steps: int = ROUNDS
) -> tuple[list[float], list[dict[str, float]]]:
    """Returns the seconds of TRL's steps, in total and by stage; ``between`` is called after each step."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Turns(TrainerCallback):  # type: ignore[misc]
        began = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            spent.clear()
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.began)
            sample, scored = spent["_generate"], spent["_generate_and_score_completions"]
            stages.append(
                {"sample": sample, "score and estimate": scored - sample, "update": seconds[-1] - scored}
            )
            between()

    def reward(completions: list[list[dict[str, str]]], **_: Any) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        return [float(re.fullmatch(PATTERN, text, re.DOTALL) is not None) for text in texts]

    seconds: list[float] = []
    stages: list[dict[str, float]] = []
    spent: dict[str, float] = defaultdict(float)
    trainer = GRPOTrainer(
        model=str(model),
        reward_funcs=reward,
        train_dataset=Dataset.from_list([{"prompt": chat} for chat in chats()]),
        callbacks=[Turns()],
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            use_cpu=True,
            model_init_kwargs={"dtype": dtype},
            bf16=False,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=PROMPTS,
            num_generations=SAMPLES,
            max_completion_length=tokens,
            beta=0.0,
            loss_type="grpo",
            learning_rate=1e-6,
            gradient_checkpointing=False,
            max_steps=steps,
            save_strategy="no",
            report_to=[],
            logging_steps=1,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
    )
    for name in ("_generate", "_generate_and_score_completions"):
        setattr(trainer, name, timed(getattr(trainer, name), spent, name))
    trainer.train()
    length = trainer.state.log_history[0]["completions/mean_length"]
    assert length == tokens, length
    return seconds, stages


def timed(function: Callable[..., Any], spent: dict[str, float], name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        result = function(*arguments, **named)
        spent[name] += time.perf_counter() - began
        return result

    return call


def endless_model(folder: Path) -> Path:
    """Returns a folder with the weights of the model and an end token that is never sampled."""
    folder.mkdir()
    for path in MODEL.iterdir():
        (folder / path.name).symlink_to(path.resolve())
    token = json.loads((MODEL / "tokenizer.json").read_text())["model"]["vocab"]
    name = next(text for text, index in token.items() if index == NO_TOKEN)
    for file, value in (
        ("config.json", NO_TOKEN),
        ("generation_config.json", NO_TOKEN),
        ("tokenizer_config.json", name),
    ):
        path = folder / file
        if path.exists():
            table = json.loads(path.read_text())
            path.unlink()
            table["eos_token" if file == "tokenizer_config.json" else "eos_token_id"] = value
            path.write_text(json.dumps(table))
    return folder
