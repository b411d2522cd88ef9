"""Text games with reset and step as environments."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import titanrl
from tests.unit.rollout import games
from titanrl.data.tokenizer import ChatTokenizer
from titanrl.models import tiny
from titanrl.protocols import (
    Completion,
    EnvironmentContext,
    FinishReason,
    RolloutLimit,
    RolloutRequest,
    Sampling,
    Trajectory,
)
from titanrl.protocols.environment import POLICY
from titanrl.rollout.environments.chat import TemplateChat

MODULE = "tests.unit.rollout.games"


class Policy:
    """Answers by a function of the last message, at most ``turns`` times."""

    def __init__(self, tokenizer: ChatTokenizer, answer: Any, turns: int) -> None:
        self.tokenizer, self.answer, self.left = tokenizer, answer, turns

    async def __call__(self, ids: Sequence[int], sampling: Sampling = POLICY) -> Completion:
        if not self.left:
            raise RolloutLimit("no turns left")
        self.left -= 1
        text = self.answer(self.tokenizer.decode(ids))
        sampled = [*self.tokenizer.encode_text(text), self.tokenizer.eos_ids[0]]
        return Completion(sampled, [-1.0] * len(sampled), FinishReason.STOP)

    def room(self, ids: Sequence[int]) -> int:
        return 8 * bool(self.left)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder: Path = tiny.create(tmp_path_factory.mktemp("model") / "tiny")
    template = "{% for m in messages %}{{ m.content }}{{ '<eos>' if m.role == 'assistant' }}\n{% endfor %}"
    return ChatTokenizer(folder, template)


def play(
    tokenizer: ChatTokenizer, game: str, answer: Any, *, turns: int = 9, row: int = 1, **options: Any
) -> Trajectory:
    settings = titanrl.build(
        "environment", {"name": "gym_text", "game": f"{MODULE}:{game}", "options": options}
    )
    context = EnvironmentContext(
        tokenizer=tokenizer.tokenizer,
        eos_ids=tokenizer.eos_ids,
        max_length=256,
        max_response_tokens=8,
        max_turns=turns,
        seed=0,
        open_chat=partial(TemplateChat, tokenizer),
    )
    live = settings.start(context)
    request = RolloutRequest([1], 0, 0, messages="Play", prompt_id=row)
    found: Trajectory = asyncio.run(live.run(request, Policy(tokenizer, answer, turns)))
    live.close()
    return found


def double(text: str) -> str:
    return str(2 * int(text.split()[-1]))


@pytest.mark.parametrize("game", ["Doubling", "Old"])
def test_rewards_of_turns_and_their_sum(game: str, tokenizer: ChatTokenizer) -> None:
    games.closed.clear()
    trajectory = play(tokenizer, game, double, largest=5)
    assert (trajectory.reward, trajectory.turn_rewards) == (3.0, (1.0, 1.0, 1.0))
    assert trajectory.metrics == {"finished": 1.0}
    roles = [message["role"] for message in trajectory.transcript]
    assert roles == ["user", "user", "assistant", "user", "assistant", "user", "assistant", "user"]
    assert games.closed == ["doubling"]


def test_a_game_that_the_limit_ends_keeps_its_rewards(tokenizer: ChatTokenizer) -> None:
    trajectory = play(tokenizer, "Doubling", double, turns=2)
    assert (trajectory.reward, trajectory.turn_rewards) == (2.0, (1.0, 1.0))
    assert trajectory.metrics == {"finished": 0.0}


@pytest.mark.parametrize("game", ["Doubling", "Old"])
def test_rollouts_of_a_prompt_play_the_same_game_and_leave_the_random_state(
    game: str, tokenizer: ChatTokenizer
) -> None:
    state = random.getstate()
    first, again, other = (play(tokenizer, game, lambda text: "x", row=row) for row in (1, 1, 2))
    assert [message["content"] for message in first.transcript] == [
        message["content"] for message in again.transcript
    ]
    assert first.transcript != other.transcript
    assert random.getstate() == state


def test_textarena_games_give_their_reward_at_the_end(tokenizer: ChatTokenizer) -> None:
    answers = iter(("3", "7"))
    trajectory = play(tokenizer, "Arena", lambda text: next(answers))
    assert trajectory.reward == 1.0
    texts = [message["content"] for message in trajectory.transcript]
    assert texts == ["Play", "Say a number.", "3", "No.", "7"]
    assert play(tokenizer, "Arena", lambda text: "3", turns=2).reward is None


def test_a_textarena_game_of_the_package(tokenizer: ChatTokenizer) -> None:
    pytest.importorskip("textarena")
    settings = titanrl.build(
        "environment",
        {"name": "gym_text", "game": "textarena:make", "options": {"env_id": "GuessTheNumber-v0-raw"}},
    )
    context = EnvironmentContext(
        tokenizer=tokenizer.tokenizer,
        eos_ids=tokenizer.eos_ids,
        max_length=10_000,
        max_response_tokens=8,
        max_turns=30,
        seed=0,
        open_chat=partial(TemplateChat, tokenizer),
    )
    guesses = iter(range(1, 21))
    request = RolloutRequest([1], 0, 0, messages="Play", prompt_id=3)
    policy = Policy(tokenizer, lambda text: f"[{next(guesses)}]", 30)
    trajectory: Trajectory = asyncio.run(settings.start(context).run(request, policy))
    assert trajectory.reward is not None
    assert trajectory.metrics == {"finished": 1.0}


def test_mistakes_are_sentences(tokenizer: ChatTokenizer) -> None:
    with pytest.raises(titanrl.ConfigError, match=r"no_game"):
        titanrl.build("environment", {"name": "gym_text", "game": f"{MODULE}:no_game"})
    with pytest.raises(TypeError, match=r"step\(\) must return observation, reward"):
        play(tokenizer, "Wrong", double)
