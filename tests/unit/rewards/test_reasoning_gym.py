"""The reasoning-gym source and reward: repeatable, held out by text, scored by the task's own scorer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import titanrl
from titanrl.components.sources.reasoning_gym_tasks import decode_entry, encode_entry, task_options
from titanrl.config import load

pytestmark = pytest.mark.slow

EASY = {"max_terms": 2, "max_digits": 1}


def source(**keys: Any) -> Any:
    return titanrl.build("source", {"name": "reasoning_gym", "dataset": "chain_sum", "options": EASY, **keys})


def questions(prompts: Any) -> set[str]:
    return {prompts[index].messages[-1]["content"] for index in range(len(prompts))}


def score(responses: list[str], answer: str, **keys: Any) -> list[float]:
    text = {"response": responses, "answer": [answer] * len(responses)}
    mask = torch.ones(len(responses), 1, dtype=torch.bool)
    batch = TensorDict({"loss_mask": mask, "text": text}, batch_size=[len(responses)])
    reward = titanrl.build("reward", {"name": "reasoning_gym", "dataset": "chain_sum", **keys})
    return [round(value, 4) for value in reward(batch).tolist()]


def test_questions_are_a_function_of_seed_and_index() -> None:
    first, again, other = source(size=50).open(), source(size=50).open(), source(size=50, seed=1).open()
    found = [first[index] for index in range(50)]
    assert found == [again[index] for index in reversed(range(50))][::-1]
    assert found != [other[index] for index in range(50)]


def test_held_out_questions_are_never_trained_on() -> None:
    train, held_out = source(size=1000).open(), source(size=60, split="held_out", seed=5).open()
    asked = questions(train)
    assert len(asked) > 100
    assert not asked & questions(held_out)


def test_quickstart_evaluation_questions_are_held_out() -> None:
    experiment = load(Path("experiments/quickstart.toml"))
    assert experiment.prompts is not None
    assert experiment.evaluation is not None
    assert experiment.evaluation.prompts is not None
    asked, held_out = (questions(each.open()) for each in (experiment.prompts, experiment.evaluation.prompts))
    assert len(asked) > 90
    assert len(held_out) > 60
    assert not asked & held_out


def test_demonstration_generates_its_question_once() -> None:
    task = {"name": "reasoning_gym_demonstrations", "dataset": "chain_sum", "size": 5}
    shown = titanrl.build("source", task).open()
    generate, generated = shown.prompts.entry, []
    shown.prompts.entry = lambda index: generated.append(index) or generate(index)
    rows = [shown[index] for index in range(5)]
    assert generated == [0, 1, 2, 3, 4]
    assert len({str(row) for row in rows}) == 5


def test_demonstrations_have_the_same_questions_and_answers_that_score_one() -> None:
    keys: dict[str, Any] = {"size": 20, "system": "Be brief.", "seed": 3, "split": "held_out"}
    task = {"name": "reasoning_gym_demonstrations", "dataset": "chain_sum", "options": EASY}
    asked, shown = source(**keys).open(), titanrl.build("source", task | keys).open()
    for index, prompt in enumerate(asked[i] for i in range(20)):
        (row,) = shown[index]
        (answer,) = row.response
        assert row.prompt == prompt.messages
        assert answer["role"] == "assistant"
        assert score([answer["content"]], prompt.answer) == [1.0]
    assert shown.location(7) == "chain_sum prompt 7"


def test_task_without_reference_answers_gives_no_demonstrations() -> None:
    shown = titanrl.build("source", {"name": "reasoning_gym_demonstrations", "dataset": "countdown"}).open()
    shown.prompts.entry = lambda _: {"question": "q", "answer": None}
    with pytest.raises(ValueError, match="has no reference answer; choose a task with one correct answer"):
        shown[0]


def test_prompt_holds_template_and_system() -> None:
    prompts = source(system="Be brief.", template="{question} {x}").open()
    system, user = prompts[3].messages
    assert system == {"role": "system", "content": "Be brief."}
    assert user["role"] == "user"
    assert user["content"] == decode_entry(prompts[3].answer)["question"] + " {x}"


@pytest.mark.parametrize(
    ("extract", "scores"),
    [
        # The scorer of chain_sum gives len(oracle) / len(answer) when the oracle is contained in the answer.
        ("auto", [1.0, 0.2, 1.0, 1.0, 0.0]),
        ("number", [1.0, 1.0, 1.0, 1.0, 0.0]),
        ("answer_tag", [0.0, 0.0, 1.0, 0.0, 0.0]),
        ("boxed", [0.0, 0.0, 0.0, 1.0, 0.0]),
        ("whole", [1.0, 0.2, 0.1053, 0.1538, 0.0]),
        ("last_line", [1.0, 0.2, 0.1053, 1.0, 0.0]),
    ],
)
@pytest.mark.parametrize("is_entry", [True, False], ids=["entry", "bare"])
def test_reward_scores_the_extracted_answer(extract: str, scores: list[float], is_entry: bool) -> None:
    answer = "12"
    if is_entry:
        answer = encode_entry({"question": "7 + 5 =", "answer": "12", "metadata": {"terms": (7, 5)}})
    responses = ["12", "It is  12.", "<answer>12</answer>", "I think\n \\boxed{12}", "13"]
    if extract in ("whole", "last_line"):
        responses[3] = "I say that\n12"
    assert score(responses, answer, extract=extract) == scores


def test_entry_survives_as_text() -> None:
    for entry in (
        {"question": "q", "answer": "1", "metadata": {"a": [1, 2.5, None, True]}},
        {"question": "q", "answer": None, "metadata": {(1, 2): ((1,), {3})}},
    ):
        assert decode_entry(encode_entry(entry)) == entry


@pytest.mark.parametrize("text", ["72", "", "{", "[1, 2]", "{'a': 1}", "__import__('os')", "(" * 500])
def test_reference_that_is_not_an_entry_is_the_answer(text: str) -> None:
    assert decode_entry(text) == {"question": "", "answer": text, "metadata": {}}


def test_options_are_read_without_the_package() -> None:
    assert task_options("chain_sum") == {
        "min_terms",
        "max_terms",
        "min_digits",
        "max_digits",
        "allow_negation",
    }


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dataset": "chain_sun"}, "did you mean 'chain_sum'"),
        ({"options": {"max_digits": 1.5}}, "options.max_digits must be an integer, got 1.5"),
        ({"options": {"max_digits": True}}, "options.max_digits must be an integer, got True"),
        ({"options": {"max_digits": "2"}}, "options.max_digits must be an integer, got '2'"),
        ({"options": {"max_digits": 1e308}}, "options.max_digits must be finite and of a size up to 1e"),
        ({"options": {"max_terms": 10**11}}, "options.max_terms must be of a size up to 2147483647, got"),
        ({"options": {"allow_negation": 1}}, "options.allow_negation must be true or false, got 1"),
        ({"options": {"max_term": 2}}, "options.max_term is not a setting of the task"),
        ({"size": 0}, "size must be in [1, inf)"),
        ({"seed": -1}, "seed must be in [0, inf)"),
        ({"split": "heldout"}, "did you mean 'held_out'"),
        ({"template": "question"}, "template must contain {question}"),
    ],
)
def test_source_refuses_a_wrong_table(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(titanrl.ConfigError) as error:
        source(**keys)
    assert message in str(error.value)


def test_source_reports_options_that_the_task_refuses() -> None:
    with pytest.raises(titanrl.ConfigError, match="'chain_sum' rejects them: max_terms must be >= min_terms"):
        source(options={"min_terms": 3, "max_terms": 2}).open()


def test_held_out_split_of_a_small_task_is_disjoint() -> None:
    only = {"min_terms": 1, "max_terms": 1, "max_digits": 1}
    everything, train, held_out = (
        questions(source(split=split, options=only, size=300).open())
        for split in ("all", "train", "held_out")
    )
    assert len(everything) == 10
    assert train | held_out == everything
    assert not train & held_out


def test_source_reports_a_task_too_small_to_hold_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titanrl.components.sources.reasoning_gym.is_held_out", lambda _: False)
    assert len(questions(source(size=20).open())) > 1
    with pytest.raises(titanrl.ConfigError, match="has no prompt for split 'held_out' among 400"):
        source(split="held_out").open()
