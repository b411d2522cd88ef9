"""The simplest environment: one prompt, one response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from titanrl.protocols import Environment, Trajectory
from titanrl.registry import register

if TYPE_CHECKING:
    from titanrl.protocols import Ask, EnvironmentContext, RolloutRequest


@register("environment", "single_turn")
@dataclass(frozen=True, slots=True, kw_only=True)
class SingleTurn:
    """Environment of one request per prompt, whose response other rewards score.

    Its rows are those of a run without [environment]. It is an example to begin from.
    """

    def start(self, context: EnvironmentContext) -> OneResponse:
        """Creates the live environment."""
        return OneResponse()


class OneResponse(Environment):
    """Live environment of `single_turn`."""

    async def run(self, row: RolloutRequest, ask: Ask) -> Trajectory:
        """Asks once."""
        await ask(row.prompt_ids)
        return Trajectory()
