"""Old names are errors that name the new ones, and names of other frameworks lead to ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.config.conftest import Write
from titanrl import build
from titanrl.ablation.settings import Expectation, Settings
from titanrl.config import load
from titanrl.config.experiment import Experiment
from titanrl.config.presets import preset_names
from titanrl.config.renames import METRICS
from titanrl.errors import ConfigError
from titanrl.registry import component_class
from titanrl.registry.decode import fields_of, unwrap_optional
from titanrl.registry.foreign_names import ALGORITHMS, KEYS


def report(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loop.max_update_kl=0.1", "[loop] max_update_kl was renamed to 'target_kl', got 0.1."),
        ("loop.max_resample=3", "[loop] max_resample was renamed to 'max_resample_attempts', got 3."),
        ("evaluation.every=5", "[evaluation] every was renamed to 'interval', got 5."),
        ("evaluation.selector='x'", "[evaluation] selector was renamed to 'best_of_reward', got 'x'."),
        ("reward.0.failure=-1.0", "[reward.0] failure was renamed to 'failure_score', got -1.0."),
        (
            "reward.0.deadline_seconds=2",
            "[reward.0] deadline_seconds was renamed to 'timeout_seconds', got 2.",
        ),
        ("rft.keep=2", "[rft] keep was renamed to 'max_per_prompt', got 2."),
        ("rft.least={a=1.0}", "[rft] least was renamed to 'min_rewards', got a table."),
        ("rft.unfinished=true", "[rft] unfinished was renamed to 'include_truncated', got true."),
        ("rft.write='answers'", "[rft] write = 'answers' was renamed to 'responses'."),
        ("alerts.logprob_gap=1.0", "[alerts] logprob_gap was renamed to 'logprob_diff', got 1.0."),
        ("alerts.equal_groups=1.0", "[alerts] equal_groups was renamed to 'zero_std_groups', got 1.0."),
        ("alerts.stop=['logprob_gap']", "[alerts] stop = 'logprob_gap' was renamed to 'logprob_diff'."),
        ("alerts.stop=['equal_groups']", "[alerts] stop = 'equal_groups' was renamed to 'zero_std_groups'."),
    ],
)
def test_old_key_or_value_is_refused_with_the_new_name(write: Write, override: str, message: str) -> None:
    text = report(write(), override)
    assert f"\n  {message}" in text
    assert "1 mistake\n" in text


@pytest.mark.parametrize("name", ["dataset", "reasoning_gym_demonstrations"])
def test_old_key_of_a_source_is_refused_with_the_new_name(name: str) -> None:
    needed = {
        "dataset": {"path": "x", "format": "messages"},
        "reasoning_gym_demonstrations": {"dataset": "x"},
    }
    with pytest.raises(ConfigError, match=r"too_long was renamed to 'on_overlong', got 'refuse'\."):
        build("source", {"name": name, "too_long": "refuse", **needed[name]})
    with pytest.raises(ConfigError, match=r"on_overlong = 'refuse' was renamed to 'error'\."):
        build("source", {"name": name, "on_overlong": "refuse", **needed[name]})


def test_old_name_of_a_component_is_refused_with_the_new_one(write: Write) -> None:
    message = "'reasoning_gym_answers', which was renamed to 'reasoning_gym_demonstrations'."
    assert message in report(write(), "prompts.name=reasoning_gym_answers")
    with pytest.raises(ConfigError, match=re.escape(f"unknown source {message}")):
        component_class("source", "reasoning_gym_answers")


@pytest.mark.parametrize(("old", "new"), [*METRICS.items(), ("eval/majority_of_8", "eval/maj_at_8")])
def test_old_metric_of_an_ablation_is_refused_with_the_new_name(old: str, new: str) -> None:
    message = rf"metric '{old}' was renamed to '{new}'\."
    with pytest.raises(ValueError, match=message):
        Settings(base="x", metric=old)
    with pytest.raises(ValueError, match=message):
        Settings(base="x", metrics=(old,))
    with pytest.raises(ValueError, match=message):
        Settings(base="x", expect=(Expectation(variant="a", direction="higher", metric=old),))


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("optimizer.learning_rate=1e-6", "did you mean [optimizer] lr?"),
        ("training.learning_rate=1e-6", "did you mean [optimizer] lr?"),
        ("loop.num_generations=4", "did you mean [loop] samples_per_prompt?"),
        ("training.steps=4", "did you mean [loop] steps?"),
        ("report.wandb=true", "did you mean [report] trackers?"),
        ("wandb=true", "did you mean [report] trackers?"),
        ("learning_rate=1e-6", "did you mean [optimizer] lr?"),
    ],
)
def test_name_of_another_framework_leads_to_the_key(write: Write, override: str, hint: str) -> None:
    assert hint in report(write(), override)


def test_algorithm_given_as_a_loss_leads_to_its_preset(write: Write) -> None:
    text = report(write(), "algorithm.loss.name=grpo")
    assert (
        "[algorithm.loss] name is no registered loss, got 'grpo'; it is an advantage, and the whole "
        'algorithm is base = "titanrl:algorithms/grpo.toml";'
    ) in text


def test_every_foreign_key_leads_to_a_key_that_exists() -> None:
    tables = {name: unwrap_optional(hint)[0] for name, (_, hint) in fields_of(Experiment).items()}
    for place in KEYS.values():
        table, key = re.fullmatch(r"\[([\w.]+)\] (\w+)", place).groups()  # type: ignore[union-attr]
        if table == "sampler":
            known = set(fields_of(component_class("sampler", "torch")))
        elif table == "algorithm.loss":
            known = set(fields_of(component_class("loss", "ppo_clip")))
        elif table == "algorithm.kl":
            known = set(fields_of(unwrap_optional(fields_of(tables["algorithm"])["kl"][1])[0]))
        else:
            known = set(fields_of(tables[table]))
        assert key in known, place


def test_every_algorithm_has_a_preset() -> None:
    assert {f"algorithms/{name}.toml" for name in ALGORITHMS} <= set(preset_names())
