"""The stages that online and offline steps share: advantages of scored rows, and the update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from titanrl.algorithm.compute_advantages import compute_advantages, compute_loss_weights
from titanrl.algorithm.metrics import Sums, add, means
from titanrl.algorithm.minibatches import minibatches
from titanrl.engine import collectives
from titanrl.errors import ConfigError
from titanrl.protocols.batch import check
from titanrl.training.critic import update_critic

if TYPE_CHECKING:
    from tensordict import TensorDict

    from titanrl.training.session import Session

__all__ = ["gather_and_compute_advantages", "gather_scored", "optimize", "with_advantage"]


def gather_scored(session: Session[Any], local: TensorDict, *, on_policy: bool) -> TensorDict:
    """Returns the scored rows of all ranks.

    Args:
        session: the run.
        local: this rank's rows as stage `score` leaves them.
        on_policy: see ``Session.keys_to_score``.
    """
    scored = collectives.gather(local, session.engine.dp_group, session.engine.dp_degree)
    check(scored, "score", session.keys_to_score(on_policy=on_policy))
    return scored


def gather_and_compute_advantages(
    session: Session[Any], local: TensorDict, *, on_policy: bool
) -> tuple[TensorDict, TensorDict, dict[str, float]]:
    """Returns the scored rows of all ranks, the rows to train on with their advantages, and metrics.

    Args:
        session: the run.
        local: this rank's rows as stage `score` leaves them.
        on_policy: see ``Session.keys_to_score``.
    """
    scored = gather_scored(session, local, on_policy=on_policy)
    batch, metrics = compute_advantages(scored, session.algorithm)
    check(batch, "estimate")
    return scored, batch, metrics


def optimize(session: Session[Any], batch: TensorDict, step: int, *, on_policy: bool) -> Sums:
    """Makes the optimizer steps of a batch and returns the sums of their metrics.

    Early stopping: once ``loss/approx_kl`` exceeds [loop] target_kl, the policy's remaining optimizer steps
    for this batch are skipped; those of a critic and the learning-rate schedule continue.

    Args:
        session: the run.
        batch: the rows of all ranks with their advantages.
        step: number of the training step, from 0.
        on_policy: see ``Session.keys_to_score``.
    """
    engine, loop, sums = session.engine, session.loop, Sums()
    objective = session.objective if on_policy else session.off_policy_objective
    num_skipped, exceeds_kl = 0, False
    for part in minibatches(batch, count=loop.minibatches, epochs=loop.epochs, seed=session.seed, step=step):
        weighted = compute_loss_weights(part, session.algorithm)
        check(weighted, "weigh", ("loss_weight",))
        if exceeds_kl:
            num_skipped += 1
            engine.policy.schedule.step()
        elif session.trains_policy(step):
            rows_to_train = with_advantage(weighted) if loop.skip_zero_advantage else weighted
            rows = collectives.shard_batch(rows_to_train, engine.dp_rank, engine.dp_degree)
            step_sums = engine.update(rows, objective, session.coefficients())
            sums = add(sums, step_sums)
            session.state.end_optimizer_step(means(step_sums))
            exceeds_kl = exceeds_target_kl(step_sums, loop.target_kl)
        if engine.critic is not None:
            assert session.critic_objective is not None
            rows = collectives.shard_batch(weighted, engine.dp_rank, engine.dp_degree)
            critic_sums = update_critic(engine.critic, rows, session.critic_objective)
            sums = add(sums, critic_sums)
            session.state.end_optimizer_step(means(critic_sums), of_critic=True)
            sums["critic/warmup"] = (float(not session.trains_policy(step)), 1.0)
    if loop.target_kl is not None:
        sums["update/early_stopped"] = (float(num_skipped), 1.0)
    return sums


def with_advantage(batch: TensorDict) -> TensorDict:
    """Returns the rows with a non-zero advantage; with the same weights, they give the whole gradient.

    Args:
        batch: [N, L] rows of one optimizer step, with loss_weight; advantage is 0 where masked.
    """
    return batch[batch["advantage"].any(-1)]


def exceeds_target_kl(sums: Sums, target_kl: float | None) -> bool:
    """Returns whether ``loss/approx_kl`` of an optimizer step is above the target, the same on every rank.

    Raises:
        ConfigError: the loss reports no approx_kl.
    """
    if target_kl is None:
        return False
    if "loss/approx_kl" not in sums:
        raise ConfigError("[loop] target_kl needs a loss that reports approx_kl; leave it out.")
    value, count = sums["loss/approx_kl"]
    return value > target_kl * count
