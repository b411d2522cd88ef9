"""Text games with ``reset`` and ``step``, such as those of Gymnasium's interface and of TextArena."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from titanrl.protocols import Environment, RolloutLimit, Trajectory
from titanrl.registry import register
from titanrl.runtime.dotted import load_dotted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from titanrl.protocols import Ask, EnvironmentContext, RolloutRequest

__all__ = ["GymText"]

Option = bool | int | float | str


@register("environment", "gym_text")
@dataclass(frozen=True, slots=True, kw_only=True)
class GymText:
    """Environment of a text game: its observations are messages to the policy, whose responses are actions.

    A game has ``reset`` and ``step``. In Gymnasium's interface, ``step(text)`` returns observation, reward,
    terminated, truncated and info, or observation, reward, done and info; the rewards are those of the
    turns, and their sum is that of the rollout. In TextArena's, ``step(text)`` returns done and info, and
    ``close()`` the rewards. The first observation follows the prompt's messages.

    All rollouts of a group play the same game: the seed follows from the prompt, and is given to ``reset``
    if it has a parameter ``seed``, and to Python's global random state while the game is made and reset.
    """

    game: str
    """Function that makes a game, `module:name`, such as `textarena:make`. The module is imported from the
    working directory, from an installed package, or from a file in imports."""
    options: dict[str, Option] = field(default_factory=dict)
    """Arguments of the function by name: `env_id = "GuessTheNumber-v0-raw"`."""

    def __post_init__(self) -> None:
        load_dotted(self.game)

    def start(self, context: EnvironmentContext) -> Games:
        """Creates the live environment."""
        return Games(load_dotted(self.game), dict(self.options), context)


class Games(Environment):
    """Live environment of `gym_text`."""

    def __init__(
        self, make: Callable[..., Any], options: Mapping[str, Option], context: EnvironmentContext
    ) -> None:
        self._make, self._options, self._context = make, options, context

    async def run(self, row: RolloutRequest, ask: Ask) -> Trajectory:
        """Plays one game."""
        with _seeded(row.prompt_id):
            game = self._make(**self._options)
            play = TextArenaPlay(game) if hasattr(game, "get_observation") else GymPlay(game)
            observation = play.reset(row.prompt_id)
        chat = self._context.chat(row.messages, ask)
        is_done = False
        try:
            while not is_done:
                if observation:
                    chat.add({"role": "user", "content": observation})
                action = (await chat.ask())["content"]
                observation, is_done = play.step(action)
        except RolloutLimit:
            pass
        finally:
            result = play.close()
        if observation:
            chat.add({"role": "user", "content": observation})
        metrics = {"finished": float(is_done)}
        return Trajectory(
            result.reward, turn_rewards=result.turn_rewards, metrics=metrics, transcript=chat.messages
        )


class Result(NamedTuple):
    """The rewards of a game."""

    reward: float | None
    turn_rewards: tuple[float, ...] = ()


class GymPlay:
    """A game of Gymnasium's interface."""

    def __init__(self, game: Any) -> None:
        self._game = game
        self._rewards: list[float] = []

    def reset(self, seed: int) -> str:
        """Starts the game and returns the first observation."""
        result = self._game.reset(**_seed_argument(self._game.reset, seed))
        return _text(result[0] if isinstance(result, tuple) else result)

    def step(self, action: str) -> tuple[str, bool]:
        """Returns the next observation and whether the game is over.

        Raises:
            TypeError: the game's ``step`` returned something else.
        """
        result = self._game.step(action)
        if not isinstance(result, tuple) or len(result) not in (4, 5):
            raise TypeError(
                "step() must return observation, reward, terminated, truncated and info, got "
                f"{type(result).__name__}"
            )
        observation, reward, *done, _ = result
        self._rewards.append(float(reward))
        return _text(observation), any(done)

    def close(self) -> Result:
        """Ends the game and returns its rewards."""
        if hasattr(self._game, "close"):
            self._game.close()
        return Result(sum(self._rewards), tuple(self._rewards))


class TextArenaPlay:
    """A game of TextArena for one player."""

    def __init__(self, game: Any) -> None:
        self._game = game

    def reset(self, seed: int) -> str:
        """Starts the game and returns the first observation."""
        self._game.reset(num_players=1, **_seed_argument(self._game.reset, seed))
        return self._observation()

    def step(self, action: str) -> tuple[str, bool]:
        """Returns the next observation and whether the game is over."""
        is_done, _ = self._game.step(action)
        return "" if is_done else self._observation(), bool(is_done)

    def close(self) -> Result:
        """Ends the game and returns its reward; it has none before its end."""
        rewards, _ = self._game.close()
        return Result(None if rewards is None else float(next(iter(rewards.values()))))

    def _observation(self) -> str:
        player, observation = self._game.get_observation()
        if not isinstance(observation, list):
            return _text(observation)
        # Pairs of sender and text; those of the player itself are its own responses.
        return "\n".join(str(text) for sender, text, *_ in observation if sender != player)


def _text(observation: Any) -> str:
    return "" if observation is None else str(observation)


def _seed_argument(function: Callable[..., Any], seed: int) -> dict[str, int]:
    """Returns the argument ``seed`` if a function has it; at most 31 bits, as numpy takes."""
    return {"seed": seed % 2**31} if "seed" in inspect.signature(function).parameters else {}


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds Python's random state, which games draw from, and restores it."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
