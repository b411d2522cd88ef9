"""SPO: the reward minus a tracked success rate of the prompt, without groups."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch

from titanrl.ops.groups import GroupScores
from titanrl.ops.scores import to_tokens
from titanrl.protocols import Advantages
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from tensordict import TensorDict


@register("advantage", "spo")
@dataclass(slots=True, kw_only=True)
class SPO:
    """Reward minus the prompt's tracked success rate, normalized over the batch, [N, L]; 0 where masked.

        d_i = r_i - a / (a + b),   A = (d - mean) / (sd + eps) over the scored rows of the batch, or A = d
        then once per prompt:  a <- q a + sum r,   b <- q b + sum (1 - r),   r clipped to [0, 1]
        q = clip(2^(-drift / half_drift), decay_low, decay_high)

    Each prompt has the counts (a, b), initially (prior, prior); the advantage uses those before the batch.
    The drift is the prompt's prompt_drift in its first row; without that key, q = decay_low. No groups are
    needed: one response per prompt is enough. Fewer than two scored rows or equal d give 0 if normalized,
    and an unscored row (NaN) gets 0 and is counted nowhere. The estimator is stateful: every checkpoint
    contains the counts.

    Source: SPO 2509.13232.
    """

    prior: Annotated[float, Range("(0, inf)")] = 0.5
    """Initial a and b of a prompt."""
    half_drift: Annotated[float, Range("(0, inf)")] = 0.06
    """Drift of the policy that halves the counts, nats per token."""
    decay_low: Annotated[float, Range("(0, decay_high]")] = 0.875
    """Smallest decay factor of the counts."""
    decay_high: Annotated[float, Range("(0, 1]")] = 0.96
    """Largest decay factor of the counts."""
    normalize: bool = True
    """Whether d is normalized over the rows of the batch."""
    eps: Annotated[float, Range("[0, inf)")] = 1e-8
    """Added to the standard deviation."""
    counts: dict[int, tuple[float, float]] = field(default_factory=dict, init=False)
    """(a, b) of each prompt seen so far."""
    in_keys: ClassVar[tuple[str, ...]] = ("reward", "prompt_id")
    optional_keys: ClassVar[tuple[str, ...]] = ("prompt_drift",)
    is_group_relative: ClassVar[bool] = False
    scope: ClassVar[Literal["group", "batch"]] = "batch"

    def __call__(self, batch: TensorDict) -> Advantages:
        reward, prompts = batch["reward"].double(), batch["prompt_id"].tolist()
        before = [self.counts.get(prompt, (self.prior, self.prior)) for prompt in prompts]
        difference = reward - reward.new_tensor([a / (a + b) for a, b in before])
        rows = GroupScores.of(difference, torch.zeros_like(batch["group_id"]))
        self._update(prompts, reward.tolist(), batch.get("prompt_drift", None))
        advantage = rows.score
        if self.normalize:
            normalized = (rows.score - rows.mean()) / (rows.std() + self.eps)
            advantage = torch.where(rows.comparable, normalized, 0.0)
        return Advantages(to_tokens(torch.where(rows.scored, advantage, 0.0), batch["loss_mask"]))

    def _update(self, prompts: list[int], rewards: list[float], drift: torch.Tensor | None) -> None:
        seen: dict[int, list[float]] = {}
        decay: dict[int, float] = {}
        drifts = [math.inf] * len(prompts) if drift is None else drift.tolist()
        for prompt, reward, moved in zip(prompts, rewards, drifts, strict=True):
            if math.isnan(reward):
                continue
            factor = 2.0 ** (-moved / self.half_drift)
            decay.setdefault(prompt, min(max(factor, self.decay_low), self.decay_high))
            seen.setdefault(prompt, []).append(min(max(reward, 0.0), 1.0))
        for prompt, values in seen.items():
            a, b = self.counts.get(prompt, (self.prior, self.prior))
            q, right = decay[prompt], math.fsum(values)
            self.counts[prompt] = (q * a + right, q * b + len(values) - right)

    def state_dict(self) -> dict[str, Any]:
        """Returns the counts as tensors: prompts [P] int64, counts [P, 2] float64."""
        return {
            "prompts": torch.tensor(list(self.counts), dtype=torch.int64),
            "counts": torch.tensor(list(self.counts.values()), dtype=torch.float64).view(-1, 2),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the counts that state_dict() returned."""
        pairs = zip(state_dict["prompts"].tolist(), state_dict["counts"].tolist(), strict=True)
        self.counts = {prompt: (a, b) for prompt, (a, b) in pairs}
