"""The tables of an experiment file that are titanrl's own; each key's docstring is its documentation."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from titanrl.config.engine_tables import LRScheduler, Optimizer
from titanrl.config.paths import has_control_characters
from titanrl.protocols import DataSettings, PolicyLoss, RewardFunction, SourceSettings
from titanrl.registry import Range, name_of, validated
from titanrl.registry.decode import Component, build

__all__ = [
    "Critic", "CriticOptimizer", "Evaluation", "Loop", "Model", "Reference", "Reward", "Run",
    "Teacher",
]  # fmt: skip


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where a run leaves its files, and the seed of everything random in it."""

    name: str | None = None
    """Name of the run's folder; omitted: the experiment file's name."""
    folder: str = "runs"
    """Folder that holds the runs, relative to the working directory."""
    seed: Annotated[int, Range("[0, inf)")] = 0
    """Seed of prompt order, sampling and initial weights, >= 0; the same seed gives the same run."""

    def __post_init__(self) -> None:
        name = self.name
        if name is not None and (name in ("", ".", "..") or "/" in name or has_control_characters(name)):
            raise ValueError(f"name must be a plain folder name, got {name!a}.")


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model that is trained."""

    path: str
    """Hugging Face folder (config.json, tokenizer, safetensors), relative to the working directory."""
    head: Literal["language", "value"] = "language"
    """language: the vocabulary's; value: one number a position (reward models), new on a language model."""
    heads: Annotated[dict[str, float], Range("(-inf, inf)")] = field(default_factory=dict)
    """Names of several value heads, and the weight of each in the score; omitted: there is one. Examples of
    [data] say with the column `head` which one they are about, else it is the score."""
    chat_template: str | None = None
    """Jinja text that turns chat messages into a prompt; omitted: the tokenizer's own template."""

    def __post_init__(self) -> None:
        if self.heads and (self.head != "value" or len(self.heads) == 1):
            raise ValueError(
                f"heads must be two or more, with head = 'value', got {', '.join(self.heads)} with "
                f"{self.head!r}; leave it out."
            )


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """One reward of the weighted sum ``reward = sum_k weight_k * r_k``."""

    renamed: ClassVar[dict[str, str]] = {"failure": "failure_score", "deadline_seconds": "timeout_seconds"}

    component: Annotated[RewardFunction, Component("reward")]
    """The reward function; its keys stand in the same table."""
    weight: Annotated[float, Range("(-inf, inf)")] = 1.0
    """Factor in the sum; the unweighted reward stays in the batch under its label."""
    label: str = ""
    """Name in the batch and in the metrics; omitted: the component's name. Needed to use one twice."""
    failure_score: Annotated[float, Range("(-inf, inf)")] = 0.0
    """Score of an answer on which the function raised, returned no finite number, or ran out of time."""
    timeout_seconds: Annotated[float, Range("(0, inf)")] = 60.0
    """Time limit of the function on a batch, then on each row by itself, seconds, > 0."""

    def __post_init__(self) -> None:
        for key in ("failure_score", "timeout_seconds"):
            if any(each.name == key for each in fields(self.component)):  # type: ignore[arg-type]
                object.__setattr__(self, key, getattr(self.component, key))
        if not self.label:
            object.__setattr__(self, "label", name_of(self.component))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The frozen model that KL terms and preference losses compare with."""

    path: str | None = None
    """Hugging Face folder of the same architecture and vocabulary; omitted: the initial policy."""
    dtype: Literal["bfloat16", "float32"] = "float32"
    """Precision of its weights."""
    offload: bool = False
    """Whether its weights wait in CPU memory and come to the GPU only while it is scored; on a CPU they are
    there anyway."""
    cache: str | None = None
    """Folder, seen by all ranks, of log-probs on [data]: computed once before training, found again by later
    runs, and then the model takes no memory in training. Omitted: computed in each step."""


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """The frozen model that distillation learns from."""

    path: str
    """Hugging Face folder: of any size, with the policy's vocabulary and tokenizer."""
    dtype: Literal["bfloat16", "float32"] = "float32"
    """Precision of its weights."""
    offload: bool = False
    """As that of [reference]: whether its weights wait in CPU memory while it is not scored."""
    top_k: Annotated[int | None, Range("[1, inf)")] = None
    """Likeliest tokens of each trained position whose log-probs it gives (K), >= 1; given iff a loss reads
    ``candidate_ids``. Each costs 12 bytes of memory a position, on every rank."""


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class CriticOptimizer(Optimizer):
    """The critic's own optimizer, with the keys of [optimizer]."""

    lr: Annotated[float, Range("(0, inf)")] = 1e-5
    """Peak learning rate, > 0."""


SHARE = 0.1
"""Factor of a shared critic's loss, as in 1909.08593."""


def _value_loss() -> PolicyLoss:
    loss: PolicyLoss = build("loss", {"name": "value"})
    return loss


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Critic:
    """The value model beside the policy, or its second head, trained on the same minibatches."""

    path: str | None = None
    """Hugging Face folder of a value model, or of a language model that gets a new head, whose values begin
    at 0; the policy's vocabulary; omitted: [model] path."""
    shared: bool = False
    """Whether it is a second head on the policy's body instead of a model, trained by the policy's own
    optimizer steps; path, warmup_steps, optimizer and lr_scheduler must be left out then."""
    coefficient: Annotated[float | None, Range("(0, inf)")] = None
    """Factor of its loss beside the policy's, > 0; with shared only, 0.1 if omitted."""
    warmup_steps: Annotated[int, Range("[0, inf)")] = 0
    """Steps at the beginning that train the critic alone, >= 0: less than [loop] steps."""
    loss: Annotated[PolicyLoss, Component("loss")] = field(default_factory=_value_loss)
    """What the critic minimises, per token; a loss on values. Omitted: value."""
    optimizer: CriticOptimizer = None  # type: ignore[assignment]
    """What turns its gradients into weights; not there if shared."""
    lr_scheduler: LRScheduler = None  # type: ignore[assignment]
    """Its learning rate over time; not there if shared."""

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
    """Training steps, >= 1: each samples, or takes the next data, scores and updates once."""
    prompts_per_step: Annotated[int, Range("[1, inf)")]
    """Prompts of a step, or examples of [data], over all ranks, >= 1; a multiple of minibatches times
    data-parallel ranks."""
    samples_per_prompt: Annotated[int, Range("[1, inf)")] = 8
    """Answers to each prompt (G), >= 1: the group in which group-relative advantages compare; [prompts]
    only."""
    minibatches: Annotated[int, Range("[1, inf)")] = 1
    """Optimizer steps into which a batch is cut, >= 1; groups stay whole."""
    epochs: Annotated[int, Range("[1, inf)")] = 1
    """Passes over each batch, >= 1."""
    target_kl: Annotated[float | None, Range("(0, inf)")] = None
    """``loss/approx_kl`` of an optimizer step, nats, > 0, above which the policy is spared the rest of the
    batch's; omitted: none is left out."""
    data_workers: Annotated[int, Range("[0, inf)")] = 0
    """Processes of each rank that read and tokenize [prompts] or [data] ahead of the steps, >= 0; 0: each
    step reads its own."""
    max_resample_attempts: Annotated[int, Range("[0, inf)")] = 8
    """How often a step whose groups were all filtered away draws anew before the run fails, >= 0."""
    skip_zero_advantage: bool = False
    """Whether rows whose advantage is 0 stay out of the update: the same gradient for less work, where no KL
    or entropy term needs them; metrics of the update then cover the other rows."""


@validated
@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Validation on held-out prompts or data: before the first step, every so many steps, after the last."""

    renamed: ClassVar[dict[str, str]] = {"every": "interval", "selector": "best_of_reward"}

    prompts: Annotated[SourceSettings, Component("source")] | None = None
    """Held-out prompts, a source of their own; nothing is trained on them. With [data] they need a [sampler]
    and a [[reward]], which training itself has no use for."""
    data: Annotated[DataSettings, Component("source")] | None = None
    """Held-out data, a source of its own, on which the loss is taken; with [data] only."""
    interval: Annotated[int, Range("[0, inf)")] = 10
    """Steps between two validations, >= 0; 0: only before the first step and after the last."""
    num_prompts: Annotated[int, Range("[1, inf)")] = 64
    """Prompts of a validation, or examples of its data, >= 1, always the same first ones of the source."""
    samples_per_prompt: Annotated[int, Range("[1, inf)")] = 1
    """Answers to each prompt, >= 1; more than one needs a temperature above 0."""
    temperature: Annotated[float, Range("[0, inf)")] = 0.0
    """Sampling temperature, >= 0; 0: greedy."""
    reward: str | None = None
    """Label of the [[reward]] whose raw value is the held-out score; omitted: the first one."""
    best_of_reward: str | None = None
    """Label of the [[reward]], a reward model or a verifier, by whose raw value the best of several answers
    is chosen; omitted: no best-of-N score. It needs more than one answer to each prompt."""

    def __post_init__(self) -> None:
        if self.samples_per_prompt > 1 and self.temperature == 0:
            raise ValueError(
                f"samples_per_prompt must be 1 at temperature 0, got {self.samples_per_prompt}; "
                "greedy answers are all the same, so raise the temperature."
            )
        if self.best_of_reward is not None and self.samples_per_prompt == 1:
            raise ValueError(
                "best_of_reward must be left out with samples_per_prompt = 1, got "
                f"{self.best_of_reward!r}; there is nothing to choose from."
            )
