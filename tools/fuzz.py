"""Fuzzing: mutants of experiments, data files, model folders and checkpoints must be refused, or be sound.

``python -m tools.fuzz config --count 50000`` prints how many mutants were refused and accepted, and every
fault: an exception that is not titanrl's own error, a mutant that is accepted although it must be refused, or
an error that does not name the key. The same seed gives the same mutants.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titanrl.config.dump import to_table
from titanrl.config.load import parse, read
from titanrl.errors import ConfigError, TrainingError
from titanrl.preflight.verify import preflight

if TYPE_CHECKING:
    from titanrl.engine import Engine

__all__ = ["Report", "fuzz_checkpoints", "fuzz_config", "fuzz_data", "fuzz_models"]

ROLES = ("model", "reference", "teacher", "critic")
OPEN_TABLES = ("heads", "options")
"""Tables whose keys are the user's own."""
ONLINE = {
    "prompts": {"name": "reasoning_gym", "dataset": "chain_sum"},
    "sampler": {"name": "torch", "max_response_tokens": 8},
    "reward": [{"name": "exact_match"}],
    "loop": {"steps": 1, "prompts_per_step": 2},
}
"""Tables that a preset of an online algorithm lacks."""
OFFLINE = [
    {
        "data": {"name": "dataset", "path": __file__, "format": format_name},
        "loop": {"steps": 1, "prompts_per_step": 2},
    }
    for format_name in ("messages", "preference", "labeled", "ranked", "steps")
]
"""Tables that presets of offline algorithms lack, by format of the data."""
TEXTS = (
    "",
    " ",
    "x" * 5000,
    "\0",
    "a\0b",
    "\ud800",
    "a\udfffb",
    "../..",
    "\n",
    "é" * 300,
    "{",
    "{{ x }}",
    "%s",
)
HUGE = (10**10, 10**18, 10**19, 2**63, -(10**19))
FLOATS = (float("nan"), 1e308, -1e308, 1e39)


@dataclass(slots=True)
class Report:
    """Counts of mutants, and the faults that they found."""

    refused: int = 0
    accepted: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """What was done to what, and the fault."""

    def check(self, name: str, mutant: Mutant, use: Callable[[], None]) -> None:
        """Uses a mutant and records the outcome.

        Args:
            name: the file that was mutated.
            mutant: what was done to it.
            use: reads the mutant as the product does.
        """
        self.kinds[mutant.kind] += 1
        try:
            use()
        except (ConfigError, TrainingError) as error:
            self.refused += 1
            if mutant.key and mutant.key not in str(error):
                self.faults.append(f"{name}: {mutant}: the error does not name the key: {error}")
        except Exception:
            last = traceback.format_exc().strip().splitlines()
            self.faults.append(f"{name}: {mutant}: {last[-1]} at {last[-3].strip() if len(last) > 2 else ''}")
        else:
            self.accepted += 1
            if mutant.is_nonsense:
                self.faults.append(f"{name}: {mutant}: accepted")

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        text = f"{self.kinds.total()} mutants ({kinds}): {self.refused} refused, "
        return text + f"{self.accepted} accepted, {len(self.faults)} faults"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a file."""

    kind: str
    place: str
    value: Any = ""
    is_nonsense: bool = False
    """Whether it must be refused."""
    key: str = ""
    """The error must name it; empty: anything."""

    def __str__(self) -> str:
        return f"{self.kind} at {self.place}" + (f", {self.value!a:.60}" if self.value != "" else "")


# ------------------------------------------------------------------------------------------------ experiments


def base_tables(files: list[Path], model: Path) -> dict[str, dict[str, Any]]:
    """Returns the resolved tables of experiments that can run here, with a small model in every role.

    Args:
        files: experiment files.
        model: a model folder.

    Raises:
        RuntimeError: no experiment can run, so that every mutant would be refused.
    """
    tables = {}
    for file in files:
        for missing in ({}, ONLINE, *OFFLINE):
            try:
                table = to_table(parse(copy.deepcopy({**missing, "model": {"path": ""}}) | read(file).table))
                for role in ROLES:
                    if role in table and (role == "model" or "path" in table[role]):
                        table[role]["path"] = str(model)
                table["training"]["seq_len"] = 64
                if not preflight(parse(copy.deepcopy(table))):
                    tables[str(file)] = table
                    break
            except ConfigError:
                continue  # The file needs other tables, or more than a language model.
    if not tables:
        raise RuntimeError("no experiment can run with this model")
    return tables


def leaves(table: dict[str, Any], path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields the path and the value of every value that is no table."""
    for key, value in table.items():
        here = (*path, key)
        if isinstance(value, dict):
            yield from leaves(value, here)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for index, each in enumerate(value):
                yield from leaves(each, (*here, index))
        else:
            yield here, value


def mutate(table: dict[str, Any], rng: random.Random) -> Mutant:
    """Changes one place of a table and returns what was done."""
    path, value = rng.choice(list(leaves(table)))
    parent: Any = table
    for key in path[:-1]:
        parent = parent[key]
    key, place = path[-1], ".".join(map(str, path))
    is_open = any(name in path for name in OPEN_TABLES)
    kind = rng.choice(
        ("unknown key", "misspelt key", "type", "number", "text", "deletion", "deletion of a table")
    )
    if kind == "unknown key":
        name = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz_", k=12))
        parent[name] = value
        return Mutant(kind, f"{place} -> {name}", value, not is_open, "" if is_open else name)
    if kind == "misspelt key" and len(key) > 3 and not is_open:
        name = key[:1] + key[2:]
        parent[name] = parent.pop(key)
        return Mutant(kind, f"{place} -> {name}", value, True, name)
    if kind == "type":
        parent[key] = rng.choice([{"x": 1}, [[1]], [{"x": 1}], *_other_types(value)])
        return Mutant(kind, place, parent[key], not is_open, "" if is_open else key)
    if kind == "number" and isinstance(value, int | float) and not isinstance(value, bool):
        parent[key] = rng.choice(HUGE if isinstance(value, int) else FLOATS)
        return Mutant(
            kind, place, parent[key], not is_open and (key != "seed" or abs(parent[key]) >= 2**63), key
        )
    if kind == "text" and isinstance(value, str):
        parent[key] = rng.choice(TEXTS)
        is_nonsense = any(char == "\0" or "\ud800" <= char <= "\udfff" for char in parent[key])
        return Mutant(kind, place, parent[key], is_nonsense, key if is_nonsense else "")
    if kind == "deletion of a table" and len(path) > 1:
        parent = table
        for part in path[: rng.randrange(len(path) - 1)]:
            parent = parent[part]
        part = path[:-1][0] if parent is table else key
        parent.pop(part, None) if isinstance(parent, dict) else parent.clear()
        return Mutant(kind, place, part)
    del parent[key]
    return Mutant("deletion", place)


def _other_types(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [1, "true", 0.5, []]
    if isinstance(value, int):
        return [1.5, "1", True, []]
    if isinstance(value, float):
        return ["1.0", True, []]
    return [7, 1.5, True] if isinstance(value, str) else [7, 1.5, True, "x"]


def fuzz_config(files: list[Path], model: Path, *, count: int, seed: int = 0) -> Report:
    """Checks mutants of experiment files as ``titanrl check`` does.

    Args:
        files: experiment files.
        model: a language model folder.
        count: number of mutants.
        seed: of the mutants.
    """
    report, rng = Report(), random.Random(seed)
    tables = base_tables(files, model)
    names = sorted(tables)
    for _ in range(count):
        name = rng.choice(names)
        table = copy.deepcopy(tables[name])
        mutant = mutate(table, rng)

        def use(table: dict[str, Any] = table) -> None:
            if problems := preflight(parse(table)):
                raise ConfigError(problems)

        report.check(name, mutant, use)
    return report


# ------------------------------------------------------------------------------------------------------- data

ROWS: dict[str, dict[str, Any]] = {
    "prompts": {"prompt": "1 + 1", "answer": "2", "id": 7},
    "messages": {
        "messages": [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"}],
    },
    "preference": {"prompt": "1 + 1", "chosen": "2", "rejected": "3"},
    "labeled": {"prompt": "1 + 1", "completion": "2", "label": True},
    "prompt_completion": {"prompt": "1 + 1", "completion": "2"},
}
"""Format -> a valid row."""
VALUES: tuple[Any, ...] = (
    None, True, -1, 1e308, 10**30, "", "\0", "\ud800", "x" * 10**5, [], {}, [[]], [None], {"role": 1},
    [{"role": "user"}], [{"role": "tool", "content": None}], [{"content": "x"}], "é\u202e", float("nan"),
)  # fmt: skip


def _mutate_row(row: dict[str, Any], rng: random.Random) -> str:
    key = rng.choice(list(row))
    kind = rng.choice(("value", "inner value", "missing key"))
    if kind == "missing key":
        del row[key]
    elif kind == "inner value" and isinstance(row[key], list):
        message = rng.choice(row[key])
        message[rng.choice(list(message))] = rng.choice(VALUES)
    else:
        row[key] = rng.choice(VALUES)
    return f"{kind} of {key}"


def _mutate_bytes(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    kind = rng.choice(
        ("truncated", "flipped bits", "deep nesting", "byte order mark", "CRLF", "empty", "NUL")
    )
    at = rng.randrange(len(data))
    if kind == "flipped bits":
        return kind, data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    changed = {
        "truncated": data[:at],
        "deep nesting": b'{"prompt": ' + b"[" * 10**5 + b"\n" + data,
        "byte order mark": b"\xef\xbb\xbf" + data,
        "CRLF": data.replace(b"\n", b"\r\n"),
        "empty": b"",
        "NUL": data[:at] + b"\0" + data[at:],
    }
    return kind, changed[kind]


def fuzz_data(model: Path, *, count: int, seed: int = 0) -> Report:
    """Reads and tokenizes every row of mutated JSON Lines files of every format.

    Args:
        model: a language model folder.
        count: number of files.
        seed: of the mutants.
    """
    from titanrl.data.encode import tokenize_example
    from titanrl.data.tokenizer import ChatTokenizer
    from titanrl.registry.decode import build

    report, rng, tokenizer = Report(), random.Random(seed), ChatTokenizer(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        for _ in range(count):
            format_name = rng.choice(list(ROWS))
            rows = [copy.deepcopy(ROWS[format_name]) for _ in range(3)]
            place = _mutate_row(rows[1], rng) if rng.random() < 0.7 else ""
            data = "\n".join(json.dumps(row) for row in rows).encode("utf-8", "surrogatepass")
            if not place:
                place, data = _mutate_bytes(data, rng)
            path.write_bytes(data)

            def use(format_name: str = format_name) -> None:
                if format_name == "prompts":
                    source = build("source", {"name": "jsonl", "path": str(path)}).open()
                    for index in range(len(source)):
                        try:
                            tokenizer.encode(source[index])
                        except ValueError as error:
                            raise ConfigError(str(error)) from error
                    return
                table = {"name": "dataset", "path": str(path), "format": format_name}
                source = build("source", table).open()
                for index in range(len(source)):
                    try:
                        for row in source[index]:
                            tokenize_example(row, tokenizer=tokenizer, heads=())
                    except ValueError as error:
                        raise ConfigError(str(error)) from error

            report.check(f"{format_name} rows", Mutant("row", place), use)
    return report


# ----------------------------------------------------------------------------------------------------- models


def _damage_file(path: Path, rng: random.Random) -> str:
    kind = rng.choice(("missing", "truncated", "empty", "flipped bit", "noise"))
    data = path.read_bytes()
    if kind == "missing":
        path.unlink()
        return kind
    at = rng.randrange(len(data))
    changed = {
        "truncated": data[:at],
        "empty": b"",
        "flipped bit": data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :],
        "noise": rng.randbytes(len(data)),
    }
    path.write_bytes(changed[kind])
    return kind


def _damage_config(path: Path, rng: random.Random) -> str:
    config = json.loads(path.read_text())
    key = rng.choice(sorted(config))
    config[key] = rng.choice([None, -1, 0, 10**12, "x", [], {}, 1.5, True])
    path.write_text(json.dumps(config))
    return f"{key} = {config[key]!r}"


def _damage_tensors(path: Path, rng: random.Random) -> tuple[str, bool]:
    """Changes the stored weights; returns what was done and whether it must be refused."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    name = rng.choice(sorted(tensors))
    kind = rng.choice(("NaN", "inf", "shape", "missing tensor", "additional tensor", "integers", "pickle"))
    if kind == "pickle":
        path.unlink()
        torch.save(tensors, path.with_name("pytorch_model.bin"))
        return kind, False
    if kind in ("NaN", "inf"):
        tensors[name].view(-1)[rng.randrange(tensors[name].numel())] = float(kind)
    elif kind == "shape":
        tensors[name] = tensors[name][:-1].clone()
    elif kind == "missing tensor":
        del tensors[name]
    elif kind == "additional tensor":
        tensors["model.layers.0.unknown.weight"] = torch.zeros(2)
    else:
        tensors[name] = tensors[name].to(torch.int32)
    save_file(tensors, path, metadata={"format": "pt"})
    return f"{kind} in {name}", True


def fuzz_models(model: Path, *, count: int, seed: int = 0) -> Report:
    """Loads damaged copies of a model folder into the engine, and its tokenizer.

    Args:
        model: a language model folder.
        count: number of folders.
        seed: of the damage.
    """
    from titanrl.config.engine_tables import Training
    from titanrl.data.tokenizer import ChatTokenizer
    from titanrl.engine import Engine, EngineConfig
    from titanrl.models import inspect
    from titanrl.models.read_config import read_config

    report, rng = Report(), random.Random(seed)
    files = sorted(each.name for each in model.iterdir() if each.is_file())
    with tempfile.TemporaryDirectory() as folder:
        for index in range(count):
            copied = Path(folder) / str(index)
            shutil.copytree(model, copied)
            kind = rng.choice(("file", "config", "tensors"))
            is_nonsense = False
            if kind == "file":
                name = rng.choice(files)
                place = f"{_damage_file(copied / name, rng)} {name}"
            elif kind == "config":
                place = _damage_config(copied / "config.json", rng)
            else:
                place, is_nonsense = _damage_tensors(copied / "model.safetensors", rng)

            def use(copied: Path = copied) -> None:
                inspect(str(copied))
                read_config(str(copied))
                ChatTokenizer(copied).encode_text("1 + 1")
                training = Training(seq_len=16, mixed_precision_param="float32")
                Engine(EngineConfig(model=str(copied), training=training)).close()

            report.check("model folder", Mutant(kind, place, is_nonsense=is_nonsense), use)
            shutil.rmtree(copied)
    return report


# ------------------------------------------------------------------------------------------------ checkpoints


def fuzz_checkpoints(model: Path, *, count: int, seed: int = 0) -> Report:
    """Loads damaged copies of a checkpoint into the engine, as ``--resume`` does.

    Half of the mutants are damaged files, which the manifest must find: the error names the file, and the
    checkpoint before is chosen instead. The others have a manifest that fits the changed file, as a person
    who changes it on purpose would write. A flipped bit can be sound then, but must not end in a traceback;
    the other changes must be refused.

    Args:
        model: a language model folder.
        count: number of checkpoints.
        seed: of the damage.
    """
    from titanrl.config.engine_tables import Checkpoint, Training
    from titanrl.engine import Engine, EngineConfig
    from titanrl.engine.manifest import MANIFEST, hash_files, read_manifest, write_manifest
    from titanrl.engine.restore import choose_checkpoint

    report, rng = Report(), random.Random(seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "checkpoints"
        settings = EngineConfig(
            model=str(model),
            training=Training(seq_len=16, mixed_precision_param="float32"),
            checkpoint=Checkpoint(interval=1, keep_latest_k=0),
        )
        engine = Engine(settings, checkpoints=folder)
        for step in (1, 2):
            engine.save(step)
        engine.close()
        whole, damaged = Path(temporary) / "whole", folder / "step-2"
        shutil.copytree(damaged, whole)
        files = sorted(each.name for each in whole.iterdir())
        manifest = read_manifest(damaged)
        engine = Engine(settings, checkpoints=folder)
        for _ in range(count):
            shutil.rmtree(damaged)
            shutil.copytree(whole, damaged)
            is_forged = rng.random() < 0.5
            name = rng.choice([each for each in files if each != MANIFEST] if is_forged else files)
            before = (damaged / name).read_bytes()
            kind = _damage_file(damaged / name, rng)
            place = f"{kind} {name}"
            if is_forged:
                names = [each for each in manifest.files if (damaged / each).exists()]
                write_manifest(damaged, 2, manifest.mesh, hash_files(damaged, names))
                mutant = Mutant("forged", place, is_nonsense=kind != "flipped bit")
                report.check("checkpoint", mutant, lambda: _load(engine, "2"))
                continue
            assert kind == "missing" or (damaged / name).read_bytes() != before

            def use() -> None:
                if choose_checkpoint(folder) != folder / "step-1":
                    raise RuntimeError("the whole checkpoint before the damaged one was not chosen")
                _load(engine, "2")

            report.check("checkpoint", Mutant("damaged", place, is_nonsense=True, key=name), use)
        engine.close()
    return report


def _load(engine: Engine, step: str) -> None:
    if not engine.load(step):
        raise ConfigError("no complete checkpoint")


def main() -> int:
    """Runs one of the fuzzers and prints its report."""
    from titanrl.models.tiny import create

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("checkpoints", "config", "data", "models"))
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        model = create(Path(folder) / "model", context=4096)
        size = {"count": arguments.count, "seed": arguments.seed}
        if arguments.what == "config":
            report = fuzz_config(sorted(Path("experiments").rglob("*.toml")), model, **size)
        else:
            fuzzers = {"checkpoints": fuzz_checkpoints, "data": fuzz_data, "models": fuzz_models}
            report = fuzzers[arguments.what](model, **size)
    for fault in report.faults:
        print(fault)
    print(f"{report}; {time.process_time() - began:.0f} s of CPU time")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
