"""Text games for tests, in the interfaces of Gymnasium and TextArena."""

from __future__ import annotations

import random
from typing import Any

closed: list[str] = []


class Doubling:
    """Asks for the double of a random number, three times; a right answer is worth 1."""

    def __init__(self, largest: int = 9) -> None:
        self._random, self._largest, self._count = random.Random(), largest, 0

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self._random.seed(seed)
        self._number = self._random.randint(1, self._largest)
        return f"{self._number}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        reward = float(action.strip() == str(2 * self._number))
        self._count += 1
        self._number = self._random.randint(1, self._largest)
        return f"{self._number}", reward, self._count == 3, False, {}

    def close(self) -> None:
        closed.append("doubling")


class Old(Doubling):
    """The same with the four values of older interfaces, and no seed."""

    def reset(self) -> str:  # type: ignore[override]
        return super().reset(seed=random.randint(0, 999))[0]

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:  # type: ignore[override]
        observation, reward, done, _, info = super().step(action)
        return observation, reward, done, info


class Arena:
    """A game of one player in TextArena's interface: say 7."""

    def reset(self, num_players: int, seed: int | None = None) -> None:
        assert num_players == 1
        self._lines: list[tuple[int, str, str]] = [(-1, "Say a number.", "prompt")]
        self._rewards: dict[int, float] | None = None

    def get_observation(self) -> tuple[int, list[tuple[int, str, str]]]:
        lines, self._lines = self._lines, []
        return 0, lines

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        self._lines = [(0, action, "action"), (-1, "No.", "message")]
        if "7" in action:
            self._rewards = {0: 1.0}
        return self._rewards is not None, {}

    def close(self) -> tuple[dict[int, float] | None, dict[str, Any]]:
        return self._rewards, {}


class Wrong(Doubling):
    def step(self, action: str) -> Any:
        return action
