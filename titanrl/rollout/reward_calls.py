"""Calls of one reward function: its declared results are checked, and a failure stays with its row."""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from titanrl.errors import ConfigError
from titanrl.ops.masked import where0
from titanrl.ops.scores import fill_missing_scores
from titanrl.ops.sequence import is_last_loss_token
from titanrl.protocols.batch import KEYS
from titanrl.registry import declared
from titanrl.runtime.worker import error_text

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.protocols import RewardFunction

__all__ = ["RewardResults", "RewardTerm", "RewardThread", "call_reward"]

VALUE = "reward"
"""Name of the one result of a reward that declares no outputs."""


class RewardTerm(Protocol):
    """One entry of `[[reward]]`."""

    @property
    def component(self) -> RewardFunction: ...
    @property
    def weight(self) -> float: ...
    @property
    def label(self) -> str: ...
    @property
    def failure_score(self) -> float: ...
    @property
    def timeout_seconds(self) -> float | None: ...


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
        if isinstance(result, _Failure):
            return result.reason
        if not (self.outputs or self.out_keys):
            result = {self.value: result}
        elif not isinstance(result, Mapping) or set(result) != set(self.shapes):
            got = list(result) if isinstance(result, Mapping) else type(result).__name__
            return f"returned {got}, not a mapping with the declared names {list(self.shapes)}"
        parsed = {}
        for name, shape in self.shapes.items():
            tensor = result[name]
            expected = (len(batch),) if shape == "[N]" else tuple(batch["loss_mask"].shape)
            if not isinstance(tensor, torch.Tensor) or tensor.shape != expected or tensor.is_complex():
                is_tensor = isinstance(tensor, torch.Tensor)
                got = f"{tensor.dtype} of shape {list(tensor.shape)}" if is_tensor else type(tensor).__name__
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
    term: RewardTerm, results: RewardResults, batch: TensorDict, thread: RewardThread
) -> tuple[dict[str, torch.Tensor], dict[int, str]]:
    """Return the reward's results by name, finite, and the reason for each row on which it failed.

    Args:
        term: the [[reward]] table.
        results: what its function declares.
        batch: N rows.
        thread: calls the function.
    """
    own = getattr(term.component, "scores", None)
    if own is not None:
        # Such a reward isolates its rows itself; an exception it raises is no row's fault and must be seen.
        scores = own(batch)
        values = fill_missing_scores(scores, float("nan"))
        reasons = {row: _reason(scores[row]) for row in (~values.isfinite()).nonzero().flatten().tolist()}
        return {results.value: torch.where(values.isfinite(), values, term.failure_score)}, reasons
    parsed = results.parse(thread.call(term.component, batch, term.timeout_seconds), batch)
    if isinstance(parsed, str):
        if len(batch) <= 1:
            return results.failed(batch, term.failure_score), dict.fromkeys(range(len(batch)), parsed)
        rows = [call_reward(term, results, batch[row : row + 1], thread) for row in range(len(batch))]
        joined = {name: torch.cat([values[name] for values, _ in rows]) for name in results.shapes}
        return joined, {row: why[0] for row, (_, why) in enumerate(rows) if why}
    reasons = results.not_finite(parsed, batch)
    if reasons:
        failed, is_failed = (
            results.failed(batch, term.failure_score),
            torch.zeros(len(batch), dtype=torch.bool),
        )
        is_failed[list(reasons)] = True
        for name, values in parsed.items():
            mask = is_failed.view(-1, *[1] * (values.ndim - 1))
            parsed[name] = torch.where(mask, failed[name], values)
    return parsed, reasons


def _reason(score: float | str | None) -> str:
    if isinstance(score, str):
        return score
    return "gave no score" if score is None else f"returned {score}"


class _Failure(NamedTuple):
    """Stands in for the result of a function that raised or timed out."""

    reason: str


class RewardThread:
    """A thread that calls reward functions, so that one that hangs can be abandoned, and Ctrl-C works."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[Any], Any], Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_serve, args=(self._work, self._results), daemon=True, name="titanrl-reward"
        )
        self._thread.start()

    def call(self, function: Callable[[Any], Any], batch: TensorDict, seconds: float | None) -> Any:
        """Return ``function(batch)``, or a ``_Failure`` if it raises or times out."""
        self._work.put((function, batch))
        try:
            return self._results.get(timeout=seconds)
        except queue.Empty:
            self._abandon()
            self._start()
            return _Failure(f"took longer than its timeout_seconds, {seconds:g}")

    def _abandon(self) -> None:
        # Python code raises this at its next instruction; C code and sleeps only when they return.
        self._work.put(None)
        thread = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(SystemExit))

    def stop(self) -> None:
        """End the thread after its current call."""
        self._work.put(None)


def _serve(work: queue.SimpleQueue[Any], results: queue.SimpleQueue[Any]) -> None:
    with torch.no_grad():
        while True:
            task = work.get()
            if task is None:
                return
            function, batch = task
            try:
                results.put(function(batch))
            # SystemExit and KeyboardInterrupt raised by reward code are that reward's failures.
            except BaseException as error:
                results.put(_Failure(error_text(error)))
