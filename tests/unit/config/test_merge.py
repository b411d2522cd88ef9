"""Base files, dropped keys and overrides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.config.conftest import EXPERIMENT, Write
from titanrl.config import load
from titanrl.config.load import read
from titanrl.config.merge import Layers, parse_value
from titanrl.errors import ConfigError
from titanrl.registry import name_of


def merged(*tables: dict[str, Any]) -> dict[str, Any]:
    layers = Layers(("run",))
    for i, table in enumerate(tables):
        layers.add(table, f"file{i}")
    return layers.table


def test_tables_merge_deeply_and_values_are_replaced() -> None:
    assert merged({"a": {"x": 1, "b": {"y": 2, "z": 3}}}, {"a": {"b": {"y": 5}}, "c": {"d": 1}}) == {
        "a": {"x": 1, "b": {"y": 5, "z": 3}},
        "c": {"d": 1},
    }


def test_arrays_are_replaced_whole() -> None:
    assert merged({"r": [{"name": "a"}, {"name": "b"}]}, {"r": [{"name": "c"}]}) == {"r": [{"name": "c"}]}


def test_new_name_drops_the_old_components_keys_and_the_same_name_keeps_them() -> None:
    base = {"loss": {"name": "a", "x": 1, "inner": {"y": 2}}}
    assert merged(base, {"loss": {"name": "b", "z": 3}}) == {"loss": {"name": "b", "z": 3}}
    assert merged(base, {"loss": {"name": "a", "z": 3}})["loss"] == {**base["loss"], "z": 3}
    assert merged(base, {"loss": {"z": 3}})["loss"] == {**base["loss"], "z": 3}


def test_name_of_a_plain_table_drops_nothing() -> None:
    assert merged({"run": {"name": "a", "seed": 1}}, {"run": {"name": "b"}}) == {
        "run": {"name": "b", "seed": 1}
    }


def test_layers_never_share_values_with_their_sources() -> None:
    base = {"r": [{"name": "a"}]}
    layers = Layers()
    layers.add(base, "file")
    layers.set("r.0.name=b")
    assert base == {"r": [{"name": "a"}]}


def test_base_files_are_found_from_the_file_that_names_them(write: Write) -> None:
    write(EXPERIMENT, "base/whole.toml")
    write('base = "whole.toml"\n[loop]\nsteps = 5\nepochs = 2\n', "base/longer.toml")
    child = write(
        'base = "base/longer.toml"\n[loop]\nepochs = 3\n[algorithm.loss]\nname = "lab_other_loss"\n'
    )
    experiment = load(child)
    assert (experiment.loop.steps, experiment.loop.epochs, experiment.loop.prompts_per_step) == (5, 3, 8)
    assert name_of(experiment.algorithm.loss) == "lab_other_loss"


def test_later_bases_override_earlier_ones(write: Write) -> None:
    write(EXPERIMENT, "whole.toml")
    write("[loop]\nsteps = 7\nepochs = 2", "one.toml")
    write("[loop]\nsteps = 9", "two.toml")
    loop = load(write('base = ["whole.toml", "one.toml", "two.toml"]')).loop
    assert (loop.steps, loop.epochs) == (9, 2)


def test_drop_removes_tables_and_keys_of_the_base(write: Write) -> None:
    write(EXPERIMENT, "whole.toml")
    experiment = load(
        write('base = "whole.toml"\ndrop = ["algorithm.kl", "reference", "algorithm.loss.clip_low"]')
    )
    assert experiment.algorithm.kl is None
    assert experiment.reference is None
    assert experiment.algorithm.loss.clip_low == 0.2  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"algorithm\.kll is not there to be dropped; did you mean .kl.\?"):
        load(write('base = "whole.toml"\ndrop = "algorithm.kll"'))


def test_circular_or_missing_base_is_refused(write: Write, tmp_path: Path) -> None:
    write('base = "two.toml"', "one.toml")
    write('base = "one.toml"', "two.toml")
    with pytest.raises(ConfigError, match="base leads in a circle"):
        load(tmp_path / "one.toml")
    with pytest.raises(ConfigError, match=r"no such file: .*thre\.toml"):
        load(write('base = "thre.toml"'))
    with pytest.raises(ConfigError, match="base must be a string or an array of strings, got 3"):
        load(write("base = 3"))


def test_error_names_the_file_of_its_key(write: Write) -> None:
    base = write(EXPERIMENT.replace("clip_low = 0.1", "clip_low = 7.5"), "base.toml")
    with pytest.raises(ConfigError) as caught:
        load(write('base = "base.toml"\n[loop]\nsteps = -1'), ["optimizer.lr=fast"])
    report = str(caught.value)
    assert f"clip_low must be in (0, 1), got 7.5. (from {base})" in report
    assert "steps must be in [1, inf), got -1.\n" in report
    assert "lr must be a number, got 'fast'. (from --set)" in report


BASE = EXPERIMENT.replace("clip_low = 0.1\n", "")


def problems(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    return str(caught.value)


def test_mistake_in_a_renamed_table_is_that_of_the_file_that_renamed_it(write: Write) -> None:
    write(BASE, "base.toml")
    # Who reads a key that no stage writes is the loss of this file, not that of its base.
    reads = write('base = "base.toml"\n[algorithm.loss]\nname = "lab_loss"\nreads = ["no_such_key"]')
    assert "reads 'no_such_key', which no stage writes" in problems(reads)
    assert "(from" not in problems(reads)
    renamed = write('base = "base.toml"\n[algorithm.loss]\nname = "lab_other_loss"\nclip_low = 0.1')
    assert "[algorithm.loss] clip_low is not a key of loss 'lab_other_loss', got 0.1" in problems(renamed)
    assert "(from" not in problems(renamed)
    # A file below that one, itself faulty elsewhere, does not take the blame.
    top = write(f'base = "{renamed.name}"\n[loop]\nepochs = 0', "top.toml")
    assert (
        f"clip_low is not a key of loss 'lab_other_loss', got 0.1; keys: tau. (from {renamed})"
        in problems(top)
    )


def test_mistake_that_a_file_causes_in_its_base_is_its_own(write: Write) -> None:
    write(BASE, "base.toml")
    text = problems(write('base = "base.toml"\n[loop]\nminibatches = 3'))
    assert "[loop] prompts_per_step must be a multiple of minibatches (3)" in text
    assert "(from" not in text


def test_mistake_that_set_causes_is_from_set(write: Write) -> None:
    base = write(BASE, "base.toml")
    path = write('base = "base.toml"')
    text = problems(path, "loop.minibatches=3")
    assert "[loop] prompts_per_step must be a multiple of minibatches (3)" in text
    assert text.endswith("groups are never split. (from --set)")
    assert "(from base.toml)" not in text
    # The base is faulty too: its own mistake keeps its file, the new one in the table that changed has --set.
    base.write_text(BASE.replace("steps = 2", "steps = 2\nepochs = 0"))
    text = problems(path, "loop.data_workers=-1")
    assert f"epochs must be in [1, inf), got 0. (from {base})" in text
    assert "data_workers must be in [0, inf), got -1. (from --set)" in text


@pytest.mark.parametrize("name", ["\\u0000", "a\\u0000.toml", "a\\nb.toml", "\\u0085", "titanrl:\\u0000"])
def test_path_with_a_control_character_is_refused(write: Write, name: str) -> None:
    assert re.search(
        r"base must not have control characters, got '.*'\.", problems(write(f'base = "{name}"'))
    )
    assert "imports must not have control characters" in problems(write(f'imports = ["{name}.py"]'))


@pytest.mark.parametrize("name", ["a\0.toml", "a\ud800.toml", "a" * 300])
def test_file_that_cannot_be_opened_is_refused_with_a_sentence(name: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"the path must (not have control characters|have 4095 bytes at most)|cannot be read",
    ):
        load(name)


@pytest.mark.parametrize(
    "override", ["model.path='a\0b'", "model.path=a\udc80b", 'run.name="a\\nb"', "run.name=\x7f"]
)
def test_text_that_no_path_can_have_is_refused(write: Write, override: str) -> None:
    message = (
        "must be text without NUL or unpaired surrogates|path must not have control characters|"
        "must be a plain folder name|must be a TOML value"
    )
    assert re.search(message, problems(write(BASE), override))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("3", 3),
        ("-.5", -0.5),
        ("5.", 5.0),
        ("v1.5", "v1.5"),
        ("inf", float("inf")),
        ("true", True),
        ("false", False),
        ("True", True),
        ("False", False),
        ("ppo_clip", "ppo_clip"),
        ("models/one:two", "models/one:two"),
        ('"3"', "3"),
        ("[1, 2]", [1, 2]),
        ("{a = 'b:c', d = 1e-6}", {"a": "b:c", "d": 1e-6}),
        ("1\nother = 2", "1\nother = 2"),
        ("none", "none"),
    ],
)
def test_override_values_are_toml_and_bare_words_are_strings(text: str, value: object) -> None:
    got = parse_value(text)
    assert got == value
    assert type(got) is type(value)


def test_overrides_reach_into_arrays_by_index(write: Write) -> None:
    experiment = load(write(), ["reward.0.weight=0.5"])
    assert experiment.reward[0].weight == 0.5


def test_override_of_a_name_comes_first_and_drops_the_old_keys(write: Write) -> None:
    table = read(write(), ["algorithm.loss.tau=3", "algorithm.loss.name=lab_other_loss"]).table
    assert table["algorithm"]["loss"] == {"name": "lab_other_loss", "tau": 3}


def test_override_makes_tables_and_an_empty_value_removes_them(write: Write) -> None:
    assert load(write(), ["compile.enable=true"]).compile.enable is True
    experiment = load(write(), ["algorithm.kl=", "reference="])
    assert experiment.algorithm.kl is None


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("loop.steps", "must look like a.b.c=value, got 'loop.steps'"),
        ("=3", "must look like a.b.c=value"),
        ("loop..steps=3", "must look like a.b.c=value"),
        ("reward.1.weight=2", "must name an entry of the array, got '1'; there are 0 to 0"),
        ("reward.x.weight=2", "must name an entry of the array, got 'x'"),
        ("loop.steps.more=2", "leads through loop.steps, which is 2 and no table"),
        ("loop.stops=", "is not there to be dropped; did you mean 'steps'?"),
        ("sampler.stop=[1", "must be a TOML value, got '[1'"),
    ],
)
def test_override_of_an_unknown_path_is_refused(write: Write, assignment: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(), [assignment])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("assignment", "remedy"),
    [
        ("base=nope.toml", "write it in the file"),
        ('base="\\u0000"', "write it in the file"),
        ("base.x=1", "write it in the file"),
        ('drop=["reward"]', "drop a key with an empty value"),
        ("drop.0=reward", "drop a key with an empty value"),
    ],
)
def test_override_of_a_directive_is_refused(write: Write, assignment: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=rf"(base|drop) cannot be overridden, got .*; {remedy}"):
        read(write(EXPERIMENT), [assignment])
