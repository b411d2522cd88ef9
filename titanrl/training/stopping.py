"""How a training run answers a request to stop: at the end of a step, or before a step that it abandons."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from titanrl.engine import collectives
from titanrl.runtime import status, stop

if TYPE_CHECKING:
    from titanrl.training.session import Session

__all__ = ["is_stopped", "save_for_stop", "saving_if_abandoned"]


def is_stopped() -> bool:
    """Returns whether a rank was asked to stop, the same on every rank; a collective."""
    return stop.is_listening() and collectives.any_rank(bool(stop.requested()))


@contextmanager
def saving_if_abandoned(session: Session[Any]) -> Iterator[None]:
    """Runs a step within the block; if a request to stop abandons it, saves the state before the step."""
    if stop.is_listening():
        session.state.begin_step()
    try:
        yield
    except stop.StopRequested:
        session.state.rewind()
        raise save_for_stop(session, "abandoned while it sampled or scored") from None


def save_for_stop(session: Session[Any], step_was: str = "") -> stop.StopRequested:
    """Saves a checkpoint unless the newest one holds this state; returns what ends the command.

    Args:
        session: the run, after its last complete step.
        step_was: what happened to the step after it.
    """
    done, total = session.state.step, session.loop.steps
    text = f"{done} of {total} steps are done"
    if step_was:
        text += f", and step {done + 1} was {step_was}"
    if not done:
        return stop.StopRequested(f"{text}; nothing needed saving.")
    is_saved = done == status.current().get("checkpoint") or session.save(last=True)
    if not is_saved:
        return stop.StopRequested(
            f"{text}; nothing was saved, because [checkpoint] enable is false.", is_saved=False
        )
    return stop.StopRequested(f"{text}; the checkpoint of step {done} is saved.")
