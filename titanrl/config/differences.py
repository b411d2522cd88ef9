"""Differences between a run's settings and the file that resumes it, and which of them are allowed."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from titanrl.errors import ConfigError, did_you_mean
from titanrl.registry.values import format_value

__all__ = ["Difference", "check_accepted", "differences", "flattened"]

Effect = Literal["none", "changes", "impossible"]

HARMLESS = (
    "activation_checkpoint.*",
    "alerts.*",
    "checkpoint.*",
    "compile.*",
    "evaluation.interval",
    "loop.data_workers",
    "loop.max_resample_attempts",
    "loop.steps",
    "parallelism.*",
    "profile.*",
    "reference.cache",
    "reference.offload",
    "report.*",
    "rft.*",
    "run.folder",
    "run.stall_seconds",
    "run.stop_seconds",
    "sampler.enforce_eager",
    "sampler.gpu_memory_utilization",
    "sampler.kv_cache_gib",
    "sampler.max_num_seqs",
    "sampler.max_rows",
    "sampler.sleep",
    "sampler.tensor_parallel_size",
    "teacher.offload",
    "training.max_tokens_per_microbatch",
)
"""Keys that change cost, display or duration of a run, never what it measures; ``*`` is every key below."""
IMPOSSIBLE = ("critic", "critic.shared", "data", "loop.kind", "model.head", "model.heads*", "prompts")
"""Keys and whole tables that decide what a checkpoint contains."""
SCHEDULES = ("lr_scheduler", "critic.lr_scheduler")


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose value differs."""

    key: str
    """Dotted; entries of arrays of tables are numbered."""
    old: Any
    """Value in the run; None: it has none."""
    new: Any
    """Value in the file; None: it has none."""
    effect: Effect
    """none: the run measures the same; changes: it measures something else from here on; impossible: a
    checkpoint of the run does not fit."""
    reason: str = ""
    """Further explanation."""

    def __str__(self) -> str:
        change = f"{self.key}: {_shown(self.old)} -> {_shown(self.new)}"
        return f"{change} ({self.reason})" if self.reason else change


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Return the keys in which two resolved files differ, in the order of the files.

    Args:
        old: settings of the run, plain values.
        new: the file that it is resumed with, plain values.
    """
    flat_old, flat_new = flattened(old), flattened(new)
    found = [
        Difference(table, _presence(table in old), _presence(table in new), "impossible")
        for table in ("prompts", "data", "critic")
        if (table in old) != (table in new)
    ]
    absent = tuple(f"{each.key}." for each in found)
    for key in dict.fromkeys([*flat_old, *flat_new]):
        values = flat_old.get(key), flat_new.get(key)
        if values[0] != values[1] and not key.startswith(absent):
            found.append(_difference(key, *values, old, new))
    return found


def check_accepted(found: Sequence[Difference], accepted: Iterable[str], known: Iterable[str]) -> None:
    """Check that every difference is harmless or accepted.

    Args:
        found: the differences.
        accepted: keys or tables that the user accepts; "all" accepts every key.
        known: further keys that may be accepted, although they do not differ.

    Raises:
        ConfigError: with every difference that is neither, and the remedy; or an accepted key does not exist.
    """
    accepted = list(accepted)
    keys = {*known, *(each.key for each in found)}
    tables = {key.rpartition(".")[0] for key in keys}
    for key in accepted:
        if key != "all" and key not in keys and not any(_is_below(each, key) for each in keys):
            hint = did_you_mean(key, {*keys, *tables, "all"} - {""}) or "."
            raise ConfigError(f"--accept {key} is no key of the experiment or of the run{hint}")
    impossible = [each for each in found if each.effect == "impossible"]
    if impossible:
        listed = "\n".join(f"  {each}" for each in impossible)
        raise ConfigError(
            f"--resume cannot continue the run with these changes:\n{listed}\n"
            "Its checkpoints hold other parts. Undo the changes, or start a new run without --resume."
        )
    refused = [
        each
        for each in found
        if each.effect == "changes"
        and not any(key == "all" or each.key == key or _is_below(each.key, key) for key in accepted)
    ]
    if refused:
        listed = "\n".join(f"  {each}" for each in refused)
        options = " ".join(f"--accept {key}" for key in _covering(refused))
        raise ConfigError(
            f"--resume would change what the run measures:\n{listed}\n"
            f"Undo the changes, start a new run without --resume, or accept them: {options}"
        )


def _difference(key: str, old_value: Any, new_value: Any, old: Any, new: Any) -> Difference:
    effect: Effect = "changes"
    reason = ""
    if _matches(key, IMPOSSIBLE):
        effect = "impossible"
    elif _matches(key, HARMLESS):
        effect = "none"
    if key == "loop.steps" and (tables := [each for each in SCHEDULES if _depends_on_steps(old, new, each)]):
        effect = "changes"
        reason = f"it changes the decay of the learning rate, as [{tables[0]}] total_steps is not set"
    return Difference(key, old_value, new_value, effect, reason)


def _depends_on_steps(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> bool:
    """Return whether the learning rate of a schedule depends on the number of steps."""
    for table in (old, new):
        for part in path.split("."):
            table = table.get(part, {})
        if table.get("decay_ratio") and "total_steps" not in table:
            return True
    return False


def _covering(found: Sequence[Difference]) -> list[str]:
    """Return the keys of differences, without those in the table of an exchanged component: its table."""
    names = [each.key for each in found if each.key.endswith(".name")]
    tables = [name.removesuffix(".name") for name in names if not name.endswith("optimizer.name")]
    keys = (each.key for each in found)
    return list(dict.fromkeys(next((t for t in tables if _is_below(key, t)), key) for key in keys))


def _matches(key: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)


def _is_below(key: str, table: str) -> bool:
    return key.startswith(f"{table}.")


def flattened(table: Any, prefix: str = "") -> dict[str, Any]:
    """Return dotted key -> value of a file; entries of arrays of tables are numbered.

    Empty tables and arrays are left out.
    """
    if isinstance(table, Mapping):
        items = [(f"{prefix}.{key}" if prefix else str(key), value) for key, value in table.items()]
    elif isinstance(table, list) and (not table or any(isinstance(each, Mapping) for each in table)):
        items = [(f"{prefix}.{i}", value) for i, value in enumerate(table)]
    else:
        return {prefix: table}
    return {key: value for name, each in items for key, value in flattened(each, name).items()}


def _presence(is_present: bool) -> dict[str, Any] | None:
    return {} if is_present else None


def _shown(value: Any) -> str:
    return "absent" if value is None else "a table" if value == {} else format_value(value)
