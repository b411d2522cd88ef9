"""The stages of a step that sampled and fixed answers share: local rows -> estimated batch -> new weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from titanrl.algorithm.compute_advantages import compute_advantages, compute_loss_weights
from titanrl.algorithm.metrics import Sums, add
from titanrl.algorithm.minibatches import minibatches
from titanrl.engine import collectives
from titanrl.errors import ConfigError
from titanrl.protocols.batch import check
from titanrl.training.critic import update_critic
from titanrl.training.kto_reference_point import set_reference_point

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.training.session import Session

__all__ = ["gather_and_compute_advantages", "optimize", "with_advantage"]


def gather_and_compute_advantages(
    session: Session[Any], local: TensorDict
) -> tuple[TensorDict, TensorDict, dict[str, float]]:
    """Returns the scored rows of all ranks, those of them that are trained on with their estimates, metrics.

    Args:
        local: this rank's rows as stage `score` leaves them.
    """
    engine = session.engine
    whole = collectives.gather(local, engine.dp_group, engine.dp_degree)
    whole = set_reference_point(session, whole)
    check(whole, "score", session.scored_keys)
    batch, metrics = compute_advantages(whole, session.experiment.algorithm)
    check(batch, "estimate")
    return whole, batch, metrics


def optimize(session: Session[Any], batch: TensorDict, step: int) -> Sums:
    """Makes the optimizer steps of a batch, of each model that learns; returns the sums of their metrics.

    The policy's end early once it has moved too far; a critic's go on, and so does the learning rate.
    """
    engine, loop, sums = session.engine, session.experiment.loop, Sums()
    left_out, is_far = 0, False
    for part in minibatches(batch, count=loop.minibatches, epochs=loop.epochs, seed=session.seed, step=step):
        weighed = compute_loss_weights(part, session.experiment.algorithm)
        check(weighed, "weigh", ("loss_weight",))
        if is_far:
            left_out += 1
            engine.policy.schedule.step()
        elif session.trains_policy(step):
            moving = with_advantage(weighed) if loop.skip_zero_advantage else weighed
            rows = collectives.shard_batch(moving, engine.dp_rank, engine.dp_degree)
            found = engine.update(rows, session.objective, session.coefficients())
            sums = add(sums, found)
            is_far = _is_far(found, loop.target_kl)
        if engine.critic is not None:
            assert session.critic_objective is not None
            rows = collectives.shard_batch(weighed, engine.dp_rank, engine.dp_degree)
            sums = add(sums, update_critic(engine.critic, rows, session.critic_objective))
            sums["critic/warmup"] = (float(not session.trains_policy(step)), 1.0)
    if loop.target_kl is not None:
        sums["update/early_stopped"] = (float(left_out), 1.0)
    return sums


def with_advantage(batch: TensorDict) -> TensorDict:
    """Returns the rows that have an advantage somewhere; with the same weights, they have the whole gradient.

    Args:
        batch: [N, L] rows of one optimizer step, with loss_weight; advantage is 0 where masked.
    """
    return batch[batch["advantage"].any(-1)]


def _is_far(found: Sums, limit: float | None) -> bool:
    """Whether an optimizer step found the policy further from the old one than ``limit``, the same on every
    rank.

    Raises:
        ConfigError: the loss does not say how far.
    """
    if limit is None:
        return False
    if "loss/approx_kl" not in found:
        raise ConfigError("[loop] target_kl needs a loss that reports approx_kl; leave it out.")
    value, count = found["loss/approx_kl"]
    return value > limit * count
