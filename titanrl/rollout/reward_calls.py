"""Calls of one reward function: its declared results are checked, and a failure stays with its row."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from titanrl.algorithm.combine_rewards import CombinedTerm
from titanrl.config.tables import MAX_TIMEOUTS_OF_A_BATCH
from titanrl.errors import ConfigError
from titanrl.ops.masked import where0
from titanrl.ops.scores import fill_missing_scores
from titanrl.ops.sequence import is_last_loss_token
from titanrl.protocols.batch import KEYS
from titanrl.registry import declared
from titanrl.rollout.reward_threads import LATE, FailedCall, RewardThreads
from titanrl.runtime.worker_pool import GIVEN_UP, MAX_TIMEOUTS

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import RewardFunction

__all__ = ["RewardResults", "RewardTerm", "call_reward"]

VALUE = "reward"
"""Name of the one result of a reward that declares no outputs."""


class RewardTerm(CombinedTerm, Protocol):
    """One entry of `[[reward]]`."""

    @property
    def component(self) -> RewardFunction: ...
    @property
    def failure_score(self) -> float: ...
    @property
    def timeout_seconds(self) -> float: ...
    @property
    def concurrency(self) -> int: ...
    @property
    def on_failure(self) -> str: ...
    @property
    def after_thoughts(self) -> bool: ...
    def scored_text(self, response: str) -> str: ...


@dataclass(frozen=True, slots=True)
class RewardResults:
    """The results that a reward function declares: one value per row, one per token, or several by name."""

    shapes: dict[str, str]
    """Name of each result -> ``[N]`` or ``[N, L]``."""
    value: str
    """The result that is the reward's value: the one in the weighted sum."""
    outputs: tuple[str, ...]
    """Declared names of values, which are reported one by one."""
    out_keys: tuple[str, ...]
    """Registered batch keys that the reward writes."""

    @classmethod
    def of(cls, component: Any, label: str) -> RewardResults:
        """Return what a reward's ``per_token``, ``outputs`` and ``out_keys`` declare.

        Raises:
            ConfigError: it declares both per_token and outputs.
        """
        outputs = tuple(declared(component, "outputs"))
        out_keys = tuple(declared(component, "out_keys"))
        per_token = bool(declared(component, "per_token"))
        if per_token and outputs:
            raise ConfigError(
                f"[[reward]] {label!r} declares per_token and outputs, got {', '.join(outputs)}; declare one."
            )
        names = outputs or (VALUE,)
        shapes = dict.fromkeys(names, "[N, L]" if per_token else "[N]")
        return cls(shapes | {key: KEYS[key].shape for key in out_keys}, names[0], outputs, out_keys)

    @property
    def per_token(self) -> bool:
        """Whether the value is one number per label position."""
        return self.shapes[self.value] == "[N, L]"

    def parse(self, result: Any, batch: TensorDict) -> dict[str, torch.Tensor] | str:
        """Return the results by name, on the CPU, or what is wrong with them."""
        if isinstance(result, FailedCall):
            return result.reason
        if not (self.outputs or self.out_keys):
            result = {self.value: result}
        elif not isinstance(result, Mapping) or set(result) != set(self.shapes):
            got = list(result) if isinstance(result, Mapping) else type(result).__name__
            return f"returned {got}, not a mapping with the declared names {list(self.shapes)}"
        parsed = {}
        for name, shape in self.shapes.items():
            expected = (len(batch),) if shape == "[N]" else tuple(batch["loss_mask"].shape)
            tensor = _as_tensor(result[name], expected)
            if tensor is None:
                got = _type_text(result[name])
                where = f" for {name!r}" if len(self.shapes) > 1 else ""
                unit = "row" if shape == "[N]" else f"token, {list(expected)}"
                return f"returned {got}{where}, not one number per {unit}"
            dtype = getattr(torch, KEYS[name].dtype) if name in self.out_keys else torch.float32
            values = tensor.detach().to("cpu", dtype)
            parsed[name] = values if shape == "[N]" else where0(batch["loss_mask"], values)
        return parsed

    def not_finite(self, results: Mapping[str, torch.Tensor], batch: TensorDict) -> dict[int, str]:
        """Return the reason of each row with a value that is not finite; masked positions do not count."""
        reasons: dict[int, str] = {}
        for name, values in results.items():
            mask = batch["loss_mask"] if values.ndim > 1 else torch.ones(len(batch), dtype=torch.bool)
            for row, *position in (mask & ~values.isfinite()).nonzero().tolist():
                where = f" for {name!r}" if len(self.shapes) > 1 else ""
                where += f" at label position {position[0]}" if position else ""
                reasons.setdefault(row, f"returned {float(values[(row, *position)])}{where}")
        return reasons

    def failed(self, batch: TensorDict, failure: float) -> dict[str, torch.Tensor]:
        """Return the results of rows on which the reward failed.

        Values are ``failure``, per token on the last response token; out_keys are 0.
        """
        values: dict[str, torch.Tensor] = {}
        for name, shape in self.shapes.items():
            if name in self.out_keys:
                size = (len(batch),) if shape == "[N]" else tuple(batch["loss_mask"].shape)
                values[name] = torch.zeros(size, dtype=getattr(torch, KEYS[name].dtype))
            elif shape == "[N]":
                values[name] = torch.full((len(batch),), failure)
            else:
                values[name] = where0(is_last_loss_token(batch["loss_mask"]), torch.tensor(failure))
        return values


def call_reward(
    term: RewardTerm,
    results: RewardResults,
    batch: TensorDict,
    threads: RewardThreads,
    failure: float | None = None,
) -> tuple[dict[str, torch.Tensor], dict[int, str]]:
    """Return the reward's results by name, and the reason for each row on which it failed.

    Args:
        term: the [[reward]] table.
        results: what its function declares.
        batch: N rows.
        threads: call the function.
        failure: value of a row on which it failed, NaN for none; None: the table's failure_score.
    """
    failure = term.failure_score if failure is None else failure
    if term.after_thoughts:
        batch = batch.copy()
        batch["text", "response"] = [term.scored_text(str(text)) for text in batch["text", "response"]]
    own = getattr(term.component, "scores", None)
    if own is not None:
        # Such a reward isolates its rows itself; an exception it raises is no row's fault and must be seen.
        scores = own(batch)
        values = fill_missing_scores(scores, float("nan"))
        reasons = {row: _reason(scores[row]) for row in (~values.isfinite()).nonzero().flatten().tolist()}
        return {results.value: torch.where(values.isfinite(), values, failure)}, reasons
    if declared(term.component, "per_row"):
        return _call_by_row(term, results, batch, threads, failure, math.inf)
    limit = time.monotonic() + (MAX_TIMEOUTS_OF_A_BATCH - 1) * term.timeout_seconds
    parsed = results.parse(threads.call(term.component, batch, term.timeout_seconds), batch)
    if isinstance(parsed, str):
        if len(batch) <= 1:
            return results.failed(batch, failure), dict.fromkeys(range(len(batch)), parsed)
        return _call_by_row(term, results, batch, threads, failure, limit)
    return _without_failures(results, parsed, batch, failure)


def _without_failures(
    results: RewardResults, parsed: dict[str, torch.Tensor], batch: TensorDict, failure: float
) -> tuple[dict[str, torch.Tensor], dict[int, str]]:
    """Return the results with ``failure`` in rows that have a value that is not finite, and the reasons."""
    reasons = results.not_finite(parsed, batch)
    if reasons:
        failed, is_failed = results.failed(batch, failure), torch.zeros(len(batch), dtype=torch.bool)
        is_failed[list(reasons)] = True
        for name, values in parsed.items():
            mask = is_failed.view(-1, *[1] * (values.ndim - 1))
            parsed[name] = torch.where(mask, failed[name], values)
    return parsed, reasons


def _call_by_row(
    term: RewardTerm,
    results: RewardResults,
    batch: TensorDict,
    threads: RewardThreads,
    failure: float,
    limit: float,
) -> tuple[dict[str, torch.Tensor], dict[int, str]]:
    """Return the results of each row alone, and the reasons; some rows are scored at a time.

    After three timeouts in a row, or when the rows could exceed the time of the batch, the rows that have not
    begun are given up.

    Args:
        limit: time.monotonic() after which no row begins.
    """
    seconds, num_timeouts, given_up = term.timeout_seconds, 0, ""
    rows = [batch[index : index + 1] for index in range(len(batch))]
    parsed: dict[int, dict[str, torch.Tensor] | str] = {}
    for index, result in threads.call_each(term.component, rows, seconds, term.concurrency):
        parsed[index] = results.parse(result, rows[index])
        num_timeouts = num_timeouts + 1 if str(parsed[index]).startswith(LATE) else 0
        if num_timeouts == MAX_TIMEOUTS:
            given_up = GIVEN_UP
        elif time.monotonic() > limit:
            given_up = (
                f"given up in this batch, which took longer than {MAX_TIMEOUTS_OF_A_BATCH} x timeout_seconds"
            )
        if given_up:
            threads.begin_no_more()
    joined: list[dict[str, torch.Tensor]] = []
    reasons: dict[int, str] = {}
    for index, row in enumerate(rows):
        each = parsed.get(index, given_up)
        if isinstance(each, str):
            values, why = results.failed(row, failure), {0: each}
        else:
            values, why = _without_failures(results, each, row, failure)
        joined.append(values)
        if why:
            reasons[index] = why[0]
    return {name: torch.cat([values[name] for values in joined]) for name in results.shapes}, reasons


def _as_tensor(value: Any, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Return numbers of any kind as a tensor of this shape, or None if they are not such numbers.

    Lists, tuples, arrays and tensors of real numbers or bools are accepted, also with an additional
    last dimension of size one; None is a missing number, NaN.
    """
    if not isinstance(value, torch.Tensor):
        if isinstance(value, str | bytes) or not (hasattr(value, "__len__") or hasattr(value, "__array__")):
            return None
        try:
            array = np.asarray(value)
            if array.dtype == object:
                array = np.asarray(value, dtype=np.float64)  # None becomes NaN.
            tensor = torch.as_tensor(array)
        except (TypeError, ValueError):
            return None
    else:
        tensor = value
    if tensor.shape == (*shape, 1):
        tensor = tensor.squeeze(-1)
    return None if tensor.shape != shape or tensor.is_complex() else tensor


def _type_text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} of shape {list(value.shape)}"
    length = f" of length {len(value)}" if isinstance(value, list | tuple) else ""
    return f"{type(value).__name__}{length}"


def _reason(score: float | str | None) -> str:
    if isinstance(score, str):
        return score
    return "gave no score" if score is None else f"returned {score}"
