"""A process reward model as a reward: each step is scored where the model has read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import titanrl
from titanrl.components.rewards.process_reward_model import Step, steps_of
from titanrl.config.tables import Reward
from titanrl.errors import ConfigError
from titanrl.models import tiny
from titanrl.rollout.rewards import score_rewards

PROMPT = "1 + 1 + 1 = ?"
RESPONSES = ("1 + 1 = 2\n2 + 1 = 3", "3\n\n", "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny.create(tmp_path_factory.mktemp("process") / "model", head="value", scale=0.5)


def rows_of(folder: Path) -> tuple[TensorDict, list[list[int]], int]:
    """Returns the batch, each row's ids, and the length of the prompt."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer(PROMPT, add_special_tokens=False).input_ids
    ends = [tokenizer.eos_token_id]
    rows = [prompt + tokenizer(text, add_special_tokens=False).input_ids + ends for text in RESPONSES]
    length = max(map(len, rows))
    raw = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    place = torch.arange(length - 1)
    mask = torch.stack([(place >= len(prompt) - 1) & (place < len(row) - 1) for row in rows])
    batch = TensorDict(
        {
            "input_ids": raw[:, :-1],
            "labels": raw[:, 1:],
            "loss_mask": mask,
            "text": {"response": list(RESPONSES)},
        },
        batch_size=[len(rows)],
    )
    return batch, rows, len(prompt)


@pytest.mark.parametrize(
    ("pieces", "steps"),
    [
        (["a", "\n", "b", "."], [Step(1, 0), Step(3, 3)]),
        (["a.\n", "b"], [Step(1, 0), Step(1, 1)]),
        (["a", "\n\n", "b", ""], [Step(1, 0), Step(3, 3)]),
        (["a", "\n", ""], [Step(1, 0)]),
        (["a", "\n"], [Step(1, 0)]),
        (["a.\n"], [Step(0, 0)]),
        (["\n", " ", ""], []),
        ([], []),
    ],
)
def test_steps_are_the_texts_between_separators(pieces: list[str], steps: list[Step]) -> None:
    positions = [4 + index for index in range(len(pieces))]
    moved = [Step(step.read + 4, step.last + 4) for step in steps]
    assert steps_of(pieces, positions, "\n") == moved


def test_each_step_is_scored_where_the_model_has_read_it(folder: Path) -> None:
    batch, rows, prompt = rows_of(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    first = tokenizer(RESPONSES[0].partition("\n")[0], add_special_tokens=False).input_ids
    ends = [prompt + len(first), len(rows[0]) - 1]  # tokens that the model has read

    def probability(ids: list[int]) -> float:
        with torch.no_grad():
            hidden = model.base_model(torch.tensor([ids])).last_hidden_state[0, -1]
            return float(torch.sigmoid(model.score(hidden)[0]))

    p = [probability(rows[0][:end]) for end in ends]
    reward = titanrl.build("reward", {"name": "process_reward_model", "path": str(folder), "credit": "sum"})
    values = reward(batch)
    # The reward is at the label position of the step's last token, and of the end token.
    expected = torch.zeros(values.shape[1])
    expected[prompt - 1 + len(first) - 1], expected[len(rows[0]) - 2] = p
    torch.testing.assert_close(values[0], expected, rtol=1e-5, atol=1e-6)
    assert int(values[1].count_nonzero()) == 1
    assert bool(values[2, len(rows[2]) - 2].isnan())


@pytest.mark.parametrize(
    ("credit", "earned"),
    [
        ("sum", [0.4, -0.3, 0.1]),
        ("mean", [0.4 / 3, -0.1, 0.1 / 3]),
        ("min", [0.0, -0.3, 0.0]),
        ("product", [0.0, 0.0, 0.9 * 0.2 * 0.6 - 0.5]),
        ("last", [0.0, 0.0, 0.1]),
    ],
)
def test_credit_of_steps(credit: str, earned: list[float]) -> None:
    keys = {"name": "process_reward_model", "path": "x", "credit": credit, "baseline": 0.5}
    probabilities = torch.tensor([0.9, 0.2, 0.6])
    assert titanrl.build("reward", keys)._credits(probabilities) == pytest.approx(earned, abs=1e-6)


def test_rewards_of_steps_reach_token_rewards_and_a_row_without_steps_fails(folder: Path) -> None:
    batch, rows, _ = rows_of(folder)
    keys: Any = {"name": "process_reward_model", "path": str(folder)}
    component = titanrl.build("reward", keys)
    scored = score_rewards(batch, [Reward(component=component, weight=2.0, failure_score=-1.0)])
    tokens = scored.scores["token_rewards", "process_reward_model"]
    torch.testing.assert_close(tokens[:2], 2 * component(batch)[:2])
    torch.testing.assert_close(scored.scores["reward"][:2], tokens[:2].sum(1))
    assert float(scored.scores["reward"][2]) == -2.0
    assert float(tokens[2, len(rows[2]) - 2]) == -2.0
    assert list(scored.reasons["process_reward_model"]) == [2]


def test_model_with_several_heads_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="needs a model with one head, got a, b"):
        titanrl.build("reward", {"name": "process_reward_model", "path": str(folder)}).weights(["a", "b"])
    with pytest.raises(ConfigError, match="separator must not be empty"):
        titanrl.build("reward", {"name": "process_reward_model", "path": "x", "separator": ""})
