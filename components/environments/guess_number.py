"""A guessing game over several turns, for demonstrations and tests."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from titanrl.protocols import Environment, RolloutLimit, Trajectory
from titanrl.registry import Range, register

if TYPE_CHECKING:
    from titanrl.protocols import Ask, EnvironmentContext, RolloutRequest


@register("environment", "guess_number")
@dataclass(frozen=True, slots=True, kw_only=True)
class GuessNumber:
    """Game in which the policy guesses a number between 1 and ``largest``.

    The number is a function of the prompt's row, so all rollouts of a group play the same game. The first
    whole number in a response is the guess. A guess of the number ends the game with reward 1; a wrong one is
    answered by "higher" or "lower". A game that ends otherwise has reward ``close_reward`` times the share of
    the range that the best guess excluded.
    """

    largest: Annotated[int, Range("[2, inf)")] = 16
    """Largest number of the game."""
    close_reward: Annotated[float, Range("[0, 1)")] = 0.5
    """Reward of a game that was lost by a guess next to the number."""

    def start(self, context: EnvironmentContext) -> Game:
        """Creates the live environment."""
        return Game(self, context)


class Game(Environment):
    """Live environment of `guess_number`."""

    def __init__(self, settings: GuessNumber, context: EnvironmentContext) -> None:
        self._settings, self._context = settings, context

    async def run(self, row: RolloutRequest, ask: Ask) -> Trajectory:
        """Plays one game."""
        largest = self._settings.largest
        number = _number(row, largest)
        chat = self._context.chat(row.messages, ask)
        closest, guesses = largest, 0
        try:
            while True:
                guess = _guess((await chat.ask())["content"])
                guesses += guess is not None
                if guess == number:
                    metrics = {"won": 1.0, "guesses": float(guesses)}
                    return Trajectory(1.0, metrics=metrics, transcript=chat.messages)
                if guess is None:
                    chat.add({"role": "user", "content": f"Say a number between 1 and {largest}."})
                    continue
                closest = min(closest, abs(guess - number))
                chat.add({"role": "user", "content": "higher" if guess < number else "lower"})
        except RolloutLimit:
            share = (largest - closest) / (largest - 1)
            return Trajectory(
                self._settings.close_reward * share,
                metrics={"won": 0.0, "guesses": float(guesses)},
                transcript=chat.messages,
            )


def _number(row: RolloutRequest, largest: int) -> int:
    """Returns the number of a prompt's game, the same in every step."""
    digest = hashlib.blake2b(f"{row.prompt_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % largest + 1


def _guess(text: str) -> int | None:
    found = re.search(r"-?\d{1,9}", text)
    return None if found is None else int(found.group())
