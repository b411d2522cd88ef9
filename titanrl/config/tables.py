"""The tables of an experiment file that are titanrl's own; each key's docstring is its documentation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from titanrl.config.engine_tables import LRScheduler, Optimizer
from titanrl.ops.thoughts import after_thoughts
from titanrl.protocols import DataSettings, PolicyLoss, RewardFunction, SourceSettings
from titanrl.registry import Range, declared, name_of, validated
from titanrl.registry.decode import Component, build
from titanrl.registry.values import path_fault

__all__ = [
    "Critic",
    "CriticOptimizer",
    "Evaluation",
    "Loop",
    "Model",
    "Reference",
    "Reward",
    "Run",
    "Teacher",
]


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The folder of the run and the seed of its random numbers."""

    name: str | None = None
    """Name of the run's folder. Default: the name of the experiment file."""
    folder: str = "runs"
    """Folder of all runs, relative to the working directory."""
    seed: Annotated[int, Range("[0, 9223372036854775807]")] = 0
    """Seed of prompt order, sampling and new weights; equal seeds give equal runs."""
    stop_seconds: Annotated[float, Range("(0, inf)")] = 60.0
    """Time, in seconds, from a signal that stops the command to its end. Should cover the longest update,
    validation and checkpoint; when it is over, the process ends without saving."""
    stall_seconds: Annotated[float, Range("[1, inf)")] = 120.0
    """Time, in seconds, without a sign of life of a rank after which the other ranks end."""

    def __post_init__(self) -> None:
        name = self.name
        if name is not None and (name in ("", ".", "..") or "/" in name or path_fault(name)):
            raise ValueError(f"name must be a plain folder name, got {name!a}.")


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The policy, or the value model, that is trained."""

    path: str
    """Hugging Face folder (config.json, tokenizer, safetensors), relative to the working directory."""
    head: Literal["language", "value"] = "language"
    """language: the vocabulary head; value: one number per position, for reward models. On a language
    model the value head is new."""
    heads: Annotated[dict[str, float], Range("(-inf, inf)")] = field(default_factory=dict)
    """Names of several value heads -> the weight of each in the score. Default: one head. An example of
    [data] names its head in the column `head`; without it, its labels are about the score."""
    head_dtype: Literal["float32"] | None = None
    """Precision of the vocabulary heads of the policy, the reference policy and the teacher: their matrix
    products, logits and log-probs, in training and in the samplers `torch` and `vllm`. With float32 no
    logit is rounded to bfloat16; the hidden states still are. Default: [training] mixed_precision_param.
    Value heads always compute in float32."""
    chat_template: str | None = None
    """Jinja template that renders chat messages as a prompt. Default: the tokenizer's template."""

    def __post_init__(self) -> None:
        if self.heads and (self.head != "value" or len(self.heads) == 1):
            raise ValueError(
                f"heads must be two or more, with head = 'value', got {', '.join(self.heads)} with "
                f"{self.head!r}; leave it out."
            )
        if self.head_dtype is not None and self.head == "value":
            raise ValueError(
                "head_dtype is not used with head = 'value', which always computes in float32, got "
                f"{self.head_dtype!r}; leave it out."
            )


MAX_TIMEOUTS_OF_A_BATCH = 5
"""Time limit of a reward for a batch and for its rows alone together, in timeouts."""


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """One reward of the weighted sum ``reward = sum_k weight_k * r_k``, or a factor, bound or gate of it."""

    renamed: ClassVar[dict[str, str]] = {"failure": "failure_score", "deadline_seconds": "timeout_seconds"}

    component: Annotated[RewardFunction, Component("reward")]
    """The reward function; its keys are in the same table."""
    weight: Annotated[float, Range("(-inf, inf)")] = 1.0
    """Factor in the weighted sum; the batch also keeps the unweighted reward, under its label."""
    combine: Literal["sum", "product", "minimum", "gate"] = "sum"
    """How the reward enters the combined one. `sum`: it is added. `product`: the sum is multiplied by it.
    `minimum`: it is an upper bound of sum and product. `gate`: responses with a value below gate_min get
    gate_reward, whatever the other rewards are."""
    gate_min: Annotated[float, Range("(-inf, inf)")] = 0.5
    """Smallest value that passes; with combine = "gate" only."""
    gate_reward: Annotated[float, Range("(-inf, inf)")] = 0.0
    """Combined reward of a response that does not pass; with combine = "gate" only."""
    normalize: Literal["none", "group", "batch"] = "none"
    """Rows over which the value is brought to mean 0 and standard deviation 1 before it is weighted: those
    of its group, or all rows that are sampled together. Training only; metrics, filters by label and
    evaluation see the raw value."""
    label: str = ""
    """Name in the batch and in the metrics. Default: the name of the component. Required to use a
    component twice."""
    failure_score: Annotated[float, Range("(-inf, inf)")] = 0.0
    """Score of a response on which the function raises, returns no finite number or times out."""
    timeout_seconds: Annotated[float, Range("(0, inf)")] = 60.0
    """Time limit of the function for a batch, and then for each row alone, seconds. A batch takes five times
    as long at most; rows of a function that is called per row take timeout_seconds * rows / concurrency."""
    concurrency: Annotated[int, Range("[1, 1024]")] = 8
    """Responses that are scored at a time, in threads, if the function is called per row or fails on the
    batch."""
    on_failure: Literal["score", "unscored"] = "score"
    """Treatment of a response on which the function fails: it gets failure_score, or it is left out, of group
    statistics and loss in training, of the score in evaluation. `rft` and `serve` know failure_score only."""

    after_thoughts: bool = False
    """Whether the function reads only what follows the closed thoughts of a response, after its last
    `</think>`. A response that never closes its thoughts is then empty for it."""

    def __post_init__(self) -> None:
        if self.after_thoughts and ("text", "response") not in declared(self.component, "in_keys"):
            raise ValueError(
                f"after_thoughts is not used by reward {name_of(self.component)!r}, which does not read the "
                "text of a response, got true; leave it out."
            )
        self._check_combination()
        for key in ("failure_score", "timeout_seconds", "concurrency"):
            if any(each.name == key for each in fields(self.component)):  # type: ignore[arg-type]
                object.__setattr__(self, key, getattr(self.component, key))
        if not self.label:
            object.__setattr__(self, "label", name_of(self.component))

    def _check_combination(self) -> None:
        if self.combine == "gate":
            if self.weight != 1.0 or self.normalize != "none":
                key = "weight" if self.weight != 1.0 else "normalize"
                raise ValueError(
                    f"{key} is not used with combine = 'gate', got {getattr(self, key)!r}; leave it out."
                )
        elif (self.gate_min, self.gate_reward) != (0.5, 0.0):
            raise ValueError(
                f"gate_min and gate_reward need combine = 'gate', got {self.combine!r}; set it, or leave "
                "them out."
            )
        if declared(self.component, "per_token") and (self.combine, self.normalize) != ("sum", "none"):
            raise ValueError(
                f"combine and normalize must be 'sum' and 'none' for {name_of(self.component)!r}, which "
                f"scores each token, got {self.combine!r} and {self.normalize!r}; leave them out."
            )

    def scored_text(self, response: str) -> str:
        """Returns the part of a response that the function reads."""
        return after_thoughts(response) if self.after_thoughts else response

    def max_seconds(self, num_rows: int) -> float | None:
        """Returns the longest time that scoring ``num_rows`` responses may take, seconds; None: no limit."""
        own = getattr(self.component, "max_seconds", None)
        if own is not None and (seconds := own(num_rows)) is not None:
            return float(seconds)
        if getattr(self.component, "scores", None) is not None:
            return None
        if declared(self.component, "per_row"):
            return math.ceil(num_rows / self.concurrency) * self.timeout_seconds
        return self.timeout_seconds * MAX_TIMEOUTS_OF_A_BATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The frozen reference policy of KL terms and preference losses."""

    path: str | None = None
    """Hugging Face folder of a model with the policy's architecture and vocabulary. Default: the initial
    policy."""
    dtype: Literal["bfloat16", "float32"] = "float32"
    """Precision of its weights."""
    offload: bool = False
    """Whether its weights stay in CPU memory and are copied to the GPU only for scoring; no effect on a
    CPU."""
    cache: str | None = None
    """Folder, shared by all ranks, for its log-probs on [data]. They are computed once before training and
    reused by later runs, and the model needs no memory during training. Default: computed in each step."""


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """The frozen teacher of distillation."""

    path: str
    """Hugging Face folder of a model of any size with the policy's vocabulary and tokenizer."""
    dtype: Literal["bfloat16", "float32"] = "float32"
    """Precision of its weights."""
    offload: bool = False
    """Whether its weights stay in CPU memory and are copied to the GPU only for scoring; no effect on a
    CPU."""
    top_k: Annotated[int | None, Range("[1, inf)")] = None
    """Number of most probable tokens per loss token whose log-probs it returns (K). Required if, and only
    if, a loss reads ``candidate_ids``. Each takes 12 bytes of memory per position on every rank."""


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class CriticOptimizer(Optimizer):
    """The critic's own optimizer, with the keys of [optimizer]."""

    lr: Annotated[float, Range("(0, inf)")] = 1e-5
    """Peak learning rate."""


SHARE = 0.1
"""Default factor of a shared critic's loss, as in 1909.08593."""


def _value_loss() -> PolicyLoss:
    loss: PolicyLoss = build("loss", {"name": "value"})
    return loss


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Critic:
    """The value model, or a second head on the policy, trained on the policy's minibatches."""

    path: str | None = None
    """Hugging Face folder of a value model, or of a language model that gets a new value head, whose
    values start at 0; with the policy's vocabulary. Default: [model] path."""
    shared: bool = False
    """Whether the critic is a second head on the policy's backbone, trained by the policy's optimizer
    steps. Then path, warmup_steps, optimizer and lr_scheduler must be left out."""
    coefficient: Annotated[float | None, Range("(0, inf)")] = None
    """Factor of its loss beside the policy's. Only with shared, where the default is 0.1."""
    warmup_steps: Annotated[int, Range("[0, inf)")] = 0
    """Steps at the start that train only the critic; fewer than [loop] steps."""
    loss: Annotated[PolicyLoss, Component("loss")] = field(default_factory=_value_loss)
    """Loss of the critic per token; it must read values. Default: value."""
    optimizer: CriticOptimizer = None  # type: ignore[assignment]
    """Optimizer of the critic; absent if shared."""
    lr_scheduler: LRScheduler = None  # type: ignore[assignment]
    """Learning-rate schedule of the critic; absent if shared."""

    def __post_init__(self) -> None:
        omitted: dict[str, Any] = (
            {"coefficient": SHARE}
            if self.shared
            else {"optimizer": CriticOptimizer(), "lr_scheduler": LRScheduler()}
        )
        for key, value in omitted.items():
            if getattr(self, key) is None:
                object.__setattr__(self, key, value)


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The training loop: how many steps there are, and how a step is divided."""

    renamed: ClassVar[dict[str, str]] = {
        "max_update_kl": "target_kl",
        "max_resample": "max_resample_attempts",
    }

    kind: str | None = None
    """Registered training loop; omitted: online with [prompts], offline with [data]."""
    steps: Annotated[int, Range("[1, inf)")]
    """Training steps. Each one samples, or takes the next examples, scores them and updates once."""
    prompts_per_step: Annotated[int, Range("[1, inf)")]
    """Prompts per step, or examples of [data], over all ranks; a multiple of minibatches times
    data-parallel ranks."""
    samples_per_prompt: Annotated[int, Range("[1, inf)")] = 8
    """Responses per prompt (G): the group within which group-relative advantages compare. [prompts] only."""
    minibatches: Annotated[int, Range("[1, inf)")] = 1
    """Optimizer steps per pass over a batch; groups are not split."""
    epochs: Annotated[int, Range("[1, inf)")] = 1
    """Passes over each batch."""
    target_kl: Annotated[float | None, Range("(0, inf)")] = None
    """Early stopping: once ``loss/approx_kl`` of an optimizer step exceeds this value, nats, skip the
    policy's remaining optimizer steps for this batch. Default: off."""
    data_workers: Annotated[int, Range("[0, inf)")] = 0
    """Processes per rank that read and tokenize [prompts] or [data] ahead of the steps; 0: each step reads
    its own."""
    dynamic_sampling: bool = False
    """Whether a step samples further prompts until prompts_per_step groups pass the filters; surplus groups
    are dropped. Otherwise it trains on the groups that pass, at least one. [prompts] only."""
    max_resample_attempts: Annotated[int, Range("[0, inf)")] = 8
    """How often a step samples further prompts because too few groups pass the filters. A step without any
    group then fails; one with fewer groups than dynamic_sampling asks for trains on those."""
    max_logprob_diff: Annotated[float | None, Range("(0, inf)")] = None
    """Largest difference between trainer and sampler log-probs of any token that the present weights sampled,
    nats: a step with a larger one ends the run and names the token. Costs a forward pass. Default: not
    tested. [prompts] only."""
    skip_zero_advantage: bool = False
    """Whether the update skips rows with advantage 0: the same gradient for less work, if no KL or entropy
    term needs these rows. Metrics of the update then cover the other rows only."""


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Evaluation on held-out prompts or data: before the first step, at an interval, after the last step."""

    renamed: ClassVar[dict[str, str]] = {"every": "interval", "selector": "best_of_reward"}

    prompts: Annotated[SourceSettings, Component("source")] | None = None
    """Held-out prompts, a source of their own that is never trained on. With [data] they also need a
    [sampler] and a [[reward]], which training does not use."""
    data: Annotated[DataSettings, Component("source")] | None = None
    """Held-out examples, a source of their own, on which the loss is measured. With [data] only."""
    interval: Annotated[int, Range("[0, inf)")] = 10
    """Steps between two evaluations; 0: only before the first and after the last step."""
    num_prompts: Annotated[int, Range("[1, inf)")] = 64
    """Prompts per evaluation, or examples of its data: always the first ones of the source."""
    samples_per_prompt: Annotated[int, Range("[1, inf)")] = 1
    """Responses per prompt; more than one needs a temperature above 0."""
    temperature: Annotated[float, Range("[0, inf)")] = 0.0
    """Sampling temperature; 0: greedy."""
    reward: str | None = None
    """Label of the [[reward]] whose unweighted value is the held-out score. Default: the first one."""
    best_of_reward: str | None = None
    """Label of the [[reward]], a reward model or a verifier, whose unweighted value selects the best of
    several responses. Default: no best-of-N score. Needs samples_per_prompt > 1."""

    def __post_init__(self) -> None:
        if self.samples_per_prompt > 1 and self.temperature == 0:
            raise ValueError(
                f"samples_per_prompt must be 1 at temperature 0, got {self.samples_per_prompt}; "
                "greedy responses are all equal, so raise the temperature."
            )
        if self.best_of_reward is not None and self.samples_per_prompt == 1:
            raise ValueError(
                "best_of_reward must be left out with samples_per_prompt = 1, got "
                f"{self.best_of_reward!r}; there is nothing to select from."
            )
