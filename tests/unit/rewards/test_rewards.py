"""The reward contract over every registered reward, and what single rewards must and must not do."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

import titanrl
from tests.unit.rewards.servers import answering
from titanrl.models import tiny
from titanrl.registry import declared
from titanrl.runtime.sandbox import missing_for_strict

TABLES: dict[str, dict[str, Any]] = {
    "code_tests": {"isolation": "process" if missing_for_strict() else "strict"},
    "function": {"function": "tests.unit.rewards.my_rewards:hostile"},
    "format_regex": {"pattern": "A.*"},
    "overlong": {"max_length": 4, "buffer": 2},
    "length_cosine": {"max_length": 4, "correct": "box"},
    "length_shaped": {"reward": "box"},
    "multiple_choice": {"num_choices": 5},
    "language_consistency": {"language": "en"},
    "reasoning_gym": {"dataset": "chain_sum"},
    "truncation_discount": {"reward": "box"},
}
"""Keys that rewards need on this machine."""
NASTY = (
    "",
    "\x00",
    "\ud800",
    "}{" * 50,
    r"\boxed{" * 50,
    "9" * 5000,
    "1e999999",
    "$5^{5^{5}}$",
    "𝟙𝟚 ½ ٣",
    "<think>" * 9,
    "```" * 9,
)


def make(responses: list[str], answers: list[str] | None = None) -> TensorDict:
    count = len(responses)
    labels = torch.arange(count * 4).reshape(count, 4) % 3
    return TensorDict(
        {
            "loss_mask": labels > 0,
            "input_ids": labels,
            "labels": labels,
            "finish_reason": torch.arange(count, dtype=torch.int8) % 3,
            "text": {
                "prompt": ["1 + 3?"] * count,
                "conversation": ["1 + 3?"] * count,
                "response": responses,
                "answer": answers or ["4"] * count,
                "columns": [{} for _ in range(count)],
                "outcome": [outcome(row / 2) for row in range(count)],
            },
            "group_id": torch.arange(count),
            "rewards": {"box": torch.arange(count).float() % 2},
        },
        batch_size=[count],
    )


def outcome(value: float) -> dict[str, Any]:
    """Returns what an environment reports of a rollout with one token and one turn."""
    turns = {"turn_rewards": [value], "turn_tokens": [1]}
    return {"error": "", "reward": value, "rewards": {"style": -value}, **turns}


def reward(name: str, **keys: Any) -> Any:
    return titanrl.build("reward", {"name": name, **TABLES.get(name, {}), **keys})


@pytest.fixture(scope="module", autouse=True)
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The models that some rewards ask: a tiny one, and a judge that counts the letter A."""
    folder = tiny.create(tmp_path_factory.mktemp("model") / "reward", head="value")

    def judge(path: str, sent: Any) -> tuple[int, Any]:
        count = str(sent["messages"][0]["content"].count("A"))
        return 200, {"choices": [{"message": {"content": count}}]}

    with answering(judge) as url:
        TABLES["reward_model"] = TABLES["process_reward_model"] = {"path": str(folder)}
        TABLES["llm_judge"] = {"endpoint": url, "model": "judge"}
        yield


SLOW = ("code_tests", "math_answer", "reasoning_gym")
"""Rewards that start processes or import large packages."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name in titanrl.names("reward")
    ],
)
def test_reward_is_one_finite_number_per_row_in_order(name: str) -> None:
    """For any text, a row has the same score in a batch and alone."""
    component = reward(name)
    batch = make(list(NASTY))
    values = component(batch)
    is_per_token = declared(component, "per_token")
    assert values.shape == (batch["loss_mask"].shape if is_per_token else (len(NASTY),))
    assert values.dtype == torch.float32
    # A row without a score is NaN, which only rewards of tokens return here.
    assert bool(values.isfinite().all()) or is_per_token
    alone = torch.cat([component(batch[row : row + 1]) for row in range(len(NASTY))])
    values, alone = values.flatten(), alone.flatten()
    # A network rounds otherwise in another batch.
    tolerance = 1e-6 if name in ("reward_model", "process_reward_model") else 0
    assert values.tolist() == pytest.approx(alone.tolist(), abs=tolerance, nan_ok=True)


@pytest.mark.parametrize("name", titanrl.names("reward"))
def test_reward_survives_pickling(name: str) -> None:
    component = reward(name)
    assert pickle.loads(pickle.dumps(component)) == component


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exact_match", "think_tags", "format_regex", "language_consistency"])
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(st.text(), min_size=1, max_size=4))
def test_text_reward_takes_any_text(name: str, texts: list[str]) -> None:
    assert bool(reward(name)(make(texts)).isfinite().all())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["math_answer", "exact_match", "reasoning_gym"])
def test_model_text_is_never_executed(name: str, tmp_path: Path) -> None:
    """No expression of the response runs as Python."""
    touched = tmp_path / "touched"
    code = f'__import__("os").system("touch {touched}")'
    responses = [
        rf"\boxed{{{code}}}",
        code,
        f"${code}$",
        f"<answer>{code}</answer>",
        f"The final answer is {code}",
    ]
    # No digit: the folder's name may hold any, and a scorer gives a little for an answer within a text.
    batch = make(responses, ["unsaid"] * len(responses))
    assert reward(name)(batch).tolist() == [0.0] * len(responses)
    assert not touched.exists()


@pytest.mark.parametrize("extract", ["boxed", "number", "answer_tag", "whole"])
def test_exact_match_reads_the_response_only(extract: str) -> None:
    """An answer in the prompt does not count."""
    batch = make(["I do not know"])
    batch.set(("text", "prompt"), ["e.g. \\boxed{4} 4 <answer>4</answer>"])
    assert reward("exact_match", extract=extract)(batch).tolist() == [0.0]


def test_exact_match_of_numbers_beyond_floats_does_not_match() -> None:
    batch = make(["1" * 400], ["2" * 400])
    assert reward("exact_match", extract="number")(batch).tolist() == [0.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left", "right", "score"),
    [
        (r"\frac{1}{2}", "0.5", 1.0),
        ("x=3", "3", 1.0),
        ("(1,2)", "(1,3)", 0.0),
        (r"\{1,2\}", r"\{2,1\}", 1.0),
        (r"(1,\infty)", "x>1", 1.0),
        ("10-5", "5", 1.0),
        ("4", "5", 0.0),
    ],
)
def test_math_answer_is_symmetric(left: str, right: str, score: float) -> None:
    """The result does not depend on which side is the reference."""
    batch = make([rf"\boxed{{{left}}}", rf"\boxed{{{right}}}"], [right, left])
    assert reward("math_answer")(batch).tolist() == [score, score]


@pytest.mark.slow
def test_math_answer_requires_a_reference() -> None:
    """Unparsable texts equal nothing, an explicit empty set equals an empty set."""
    responses = ["", r"\boxed{}", "@@", r"\boxed{\emptyset}", r"\boxed{\emptyset}", r"\boxed{4}"]
    answers = ["", "", "@@", "@@", r"\emptyset", ""]
    assert reward("math_answer")(make(responses, answers)).tolist() == [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]


@pytest.mark.slow
def test_math_answer_times_out_on_a_power_tower() -> None:
    """The tower gets the failure score; later responses get their own."""
    batch = make([r"\boxed{4}", "$5^{5^{5^{5^5}}}$", r"\boxed{4}", "so it is $4$"])
    values = reward("math_answer", timeout_seconds=3.0, failure_score=-0.5)(batch)
    assert values.tolist() == [1.0, -0.5, 1.0, 1.0]


@pytest.mark.slow
def test_math_answer_without_a_box_is_extracted() -> None:
    batch = make(["The answer is 4.", "It is $x = 4$.", "no number"])
    assert reward("math_answer")(batch).tolist() == [1.0, 1.0, 0.0]


def test_repetition_counts_response_tokens_only() -> None:
    batch = TensorDict(
        {
            "labels": torch.tensor([[9, 1, 2, 1, 2, 9], [1, 1, 1, 1, 1, 1]]),
            "loss_mask": torch.tensor([[0, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 1]]).bool(),
        },
        batch_size=[2],
    )
    # Bigrams 12, 21, 12: two of three are unique.
    expected = torch.tensor([-2.0 * (1 - 2 / 3), 0.0])
    torch.testing.assert_close(reward("repetition", n=2, max_penalty=-2.0)(batch), expected)


def test_think_tags_takes_a_prefilled_tag() -> None:
    batch = make(["a</think>b", "<think>a</think>b", "a</think>"])
    assert reward("think_tags", prefilled=True, score=0.5, miss=-0.5)(batch).tolist() == [0.5, -0.5, -0.5]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "format_regex"}, "pattern is missing"),
        ({"name": "format_regex", "pattern": "("}, "pattern must be a regular expression"),
        ({"name": "overlong", "max_length": 5, "buffer": 6}, "buffer must be in"),
        ({"name": "overlong", "max_length": 5, "buffer": 5, "factor": -1.0}, "factor must be in"),
        ({"name": "unfinished", "penalty": 0.5}, "penalty must be in"),
        ({"name": "repetition", "n": 0}, "n must be in [1, inf)"),
        ({"name": "length_cosine", "max_length": 0, "correct": "x"}, "max_length must be in [1, inf)"),
        ({"name": "math_answer", "timeout_seconds": 0.0}, "timeout_seconds must be in"),
        ({"name": "reasoning_gym"}, "dataset is missing"),
        ({"name": "reasoning_gym", "dataset": "chain_sun"}, "did you mean 'chain_sum'"),
        ({"name": "exact_match", "extract": "box"}, "did you mean 'boxed'"),
    ],
)
def test_reward_refuses_a_wrong_table(table: dict[str, Any], message: str) -> None:
    with pytest.raises(titanrl.ConfigError) as error:
        titanrl.build("reward", table)
    assert message in str(error.value)
