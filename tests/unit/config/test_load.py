"""From file to Experiment: decoding, base files, imports, and all mistakes at once."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import tomli

from tests.unit.config.conftest import EXPERIMENT, LAB, Write
from titanrl.config import dumps, load, parse
from titanrl.errors import ConfigError
from titanrl.registry import name_of


def mistakes(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    return str(caught.value)


def test_load_decodes_components_and_defaults(write: Write) -> None:
    experiment = load(write())
    assert name_of(experiment.algorithm.loss) == "lab_loss"
    assert experiment.algorithm.loss.clip_low == 0.1  # type: ignore[attr-defined]
    assert experiment.algorithm.kl is not None
    assert name_of(experiment.algorithm.kl.estimator) == "lab_kl"
    assert experiment.algorithm.kl.controller.coefficient == 0.04
    assert experiment.run.name == "experiment"
    assert experiment.evaluation is None
    assert experiment.training.seq_len == 2048


def test_integers_are_converted_for_float_fields(write: Write) -> None:
    weight = load(write()).reward[0].weight
    assert isinstance(weight, float)
    assert weight == 2.0


def test_reward_table_shares_keys_with_its_component(write: Write) -> None:
    (reward,) = load(write()).reward
    assert (reward.label, reward.failure_score, reward.timeout_seconds) == ("lab_match", -1.0, 60.0)
    (reward,) = load(write(), ["reward.0.failure_score=-3", "reward.0.label=right"]).reward
    assert (reward.label, reward.failure_score, reward.component.failure_score) == ("right", -3.0, -3.0)  # type: ignore[attr-defined]


def test_infinity_is_accepted_and_nan_is_refused(write: Write) -> None:
    assert load(write(), ["training.max_norm=inf"]).training.max_norm == math.inf
    assert "[optimizer] lr must be a number, got nan." in mistakes(write(), "optimizer.lr=nan")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("loop.steps=true", "[loop] steps must be an integer, got true."),
        ("loop.steps=2.5", "[loop] steps must be an integer, got 2.5."),
        ("loop.steps='2'", "[loop] steps must be an integer, got '2'."),
        ("optimizer.lr=true", "[optimizer] lr must be a number, got true."),
        ("optimizer.lr='fast'", "[optimizer] lr must be a number, got 'fast'."),
        ("checkpoint.enable=1", "[checkpoint] enable must be true or false, got 1."),
        ("model.path=3", "[model] path must be a string, got 3."),
        ("model.path=2024-01-01", "[model] path must not be a date or time, got 2024-01-01"),
        ("sampler.stop=x", "[sampler] stop must be an array, got 'x'."),
        ("sampler.stop=[1]", "[sampler] stop must be a string, got 1."),
        ("loop=3", "[loop] must be a table, got 3"),
        ("reward=3", "reward must be an array of tables, got 3"),
        ("algorithm.loss=lab_loss", "[algorithm.loss] must be a table, got 'lab_loss'"),
        ("training.dtype=float3", "must be 'bfloat16' or 'float32', got 'float3'; did you mean 'float32'?"),
        ("algorithm.loss.clip_low=1.5", "[algorithm.loss] clip_low must be in (0, 1), got 1.5."),
        ("algorithm.loss.name=7", "[algorithm.loss] name is no registered loss, got 7"),
        ("run.seed=-1", "[run] seed must be in [0, 9223372036854775807], got -1."),
        ("run.name='a/b'", "[run] name must be a plain folder name, got 'a/b'."),
    ],
)
def test_wrong_value_is_refused_with_key_value_and_allowed_values(
    write: Write, assignment: str, message: str
) -> None:
    assert message in mistakes(write(), assignment)


def test_every_error_of_a_file_is_reported_at_once(write: Write) -> None:
    text = EXPERIMENT.replace("clip_low = 0.1", "clip_hig = 0.3\nclip_low = 'big'")
    text = text.replace("steps = 2", "steps = 0").replace("[reference]", "[refrence]")
    text += "[optimizer]\nlr = -1.0\n"
    report = mistakes(write(text))
    assert "5 mistakes" in report
    for part in (
        "refrence is not a key, got a table; did you mean 'reference'?",
        "[algorithm.loss] clip_hig is not a key of loss 'lab_loss', got 0.3; did you mean 'clip_high'?",
        "[algorithm.loss] clip_low must be a number, got 'big'.",
        "[loop] steps must be in [1, inf), got 0.",
        "[optimizer] lr must be in (0, inf), got -1.0.",
    ):
        assert part in report


def test_decoded_tables_are_cross_checked_beside_other_errors(write: Write) -> None:
    report = mistakes(write(), "loop.minibatches=3", "optimizer.lr=-1")
    assert "[optimizer] lr" in report
    assert "[loop] prompts_per_step must be a multiple of minibatches (3)" in report


def test_missing_tables_and_keys_are_named_unless_a_typo_explains_them(write: Write) -> None:
    report = mistakes(write(EXPERIMENT.replace("[model]", "[modle]").replace("steps = 2\n", "")))
    assert "[model] is missing" not in report
    assert "did you mean 'model'?" in report
    assert "[loop] steps is missing; it has no default." in report
    report = mistakes(write("[model]\npath = 'x'\n"))
    assert "[algorithm] is missing" in report
    assert "[prompts] or [data] must be given, got neither" in report
    assert "must be there" not in mistakes(write(EXPERIMENT.replace("[prompts]", "[promts]")))


def test_a_component_without_name_lists_the_names(write: Write) -> None:
    report = mistakes(write(EXPERIMENT.replace('name = "lab_source"', 'nmae = "lab_source"')))
    assert "[prompts] name is missing; did you mean 'name' instead of 'nmae'?" in report
    assert "lab_source" in report


def test_written_file_reads_back_identically(write: Write) -> None:
    extra = """
[[algorithm.filter]]
name = "lab_filter"
[[algorithm.correction]]
name = "lab_correction"
cap = inf
[algorithm.entropy]
name = "lab_entropy"
[evaluation]
[evaluation.prompts]
name = "lab_source"
dataset = "held out: \\"more\\""
"""
    for text in (EXPERIMENT, EXPERIMENT + extra):
        experiment = load(write(text))
        again = write(dumps(experiment), "runs/one/experiment.toml")
        assert load(again) == experiment
        assert parse(tomli.loads(dumps(experiment))) == experiment
        assert dumps(load(again)) == dumps(experiment)


def test_controller_table_and_coefficient_exclude_each_other(write: Write) -> None:
    controller = ["algorithm.kl.controller={name='lab_adaptive', target=0.3}"]
    assert "got both; give exactly one" in mistakes(write(), *controller)
    assert "got neither; give exactly one" in mistakes(write(), "algorithm.kl.coefficient=")
    experiment = load(write(), [*controller, "algorithm.kl.coefficient="])
    assert experiment.algorithm.kl is not None
    assert name_of(experiment.algorithm.kl.controller) == "lab_adaptive"
    assert load(write(dumps(experiment))) == experiment


def test_missing_and_malformed_files_are_explained(write: Write, tmp_path: Path) -> None:
    write()
    assert "did you mean 'experiment.toml'?" in mistakes(tmp_path / "experimnt.toml")
    assert "is no valid TOML" in mistakes(write("[model\n", "broken.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    assert "is no UTF-8 text" in mistakes(tmp_path / "binary.toml")
    assert "cannot be read" in mistakes(tmp_path)


def test_import_of_a_file_is_relative_to_the_file_that_names_it(write: Write, tmp_path: Path) -> None:
    write(LAB.read_text().replace('"lab_', '"near_'), "lab/near_components.py")
    text = EXPERIMENT.replace(f'"{LAB}"', f'"{LAB}", "lab/near_components.py"')
    text = text.replace('name = "lab_loss"', 'name = "near_loss"')
    experiment = load(write(text))
    assert name_of(experiment.algorithm.loss) == "near_loss"
    assert (
        load(write(dumps(experiment), "elsewhere/deep/again.toml")).algorithm.loss
        == experiment.algorithm.loss
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("missing.py", None, "names no file"),
        ("no_such_package.losses", None, "failed with ModuleNotFoundError"),
        ("raises_on_import.py", "1 / 0", "failed with ZeroDivisionError: division by zero"),
        ("json.py", "", "clashes with the module 'json'"),
        ("taken_name.py", LAB.read_text(), "is already registered by"),
    ],
)
def test_import_that_fails_says_which_and_why(
    write: Write, name: str, source: str | None, message: str
) -> None:
    if source is not None:
        write(source, name)
    report = mistakes(write(EXPERIMENT.replace(f'"{LAB}"', f'"{LAB}", "{name}"')))
    assert message in report
    assert "imports" in report
