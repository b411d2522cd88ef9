"""A batch becomes optimizer steps: normalization, validation, epochs, minibatches and shards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

import titanrl
from tests.unit.algorithm.test_compute_advantages import algorithm
from tests.unit.data.test_examples import feed as data_of
from tests.unit.data.test_prompts import feed as prompts_of
from tests.unit.engine.one_weight import NO_TERMS, OneWeight, rows_of
from tests.unit.training.sessions import OneProcess, session_of
from titanrl.algorithm.compute_advantages import compute_loss_weights
from titanrl.algorithm.metrics import means
from titanrl.algorithm.minibatches import minibatches
from titanrl.algorithm.objective import Objective
from titanrl.config.tables import Evaluation
from titanrl.rollout.sampling import shard_prompts
from titanrl.training.offline import validate
from titanrl.training.step import optimize

SUPERVISED = algorithm(loss={"name": "sft"})


def one_weight_session(model: OneWeight, critic: OneWeight | None = None, **parts: Any) -> Any:
    """Return a session that trains one weight, on one rank."""
    engine = OneProcess(critic=critic, score=model.score, update=model.update, measure=model.measure)
    return session_of(engine, **parts)


# ----------------------------------------------------------- normalization of steps


def test_grad_norm_does_not_depend_on_the_number_of_rows() -> None:
    """Ten rows of gradient 1 in steps of four, four and two."""
    norms = []
    for count in (4, 4, 2):
        found = OneWeight().update(
            compute_loss_weights(rows_of([1] * count), SUPERVISED), Objective(loss=SUPERVISED.loss), NO_TERMS
        )
        norms.append(found["update/grad_norm"][0])
    assert norms == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("count", [1, 3, 4])
def test_uneven_minibatches_are_normalized_separately(count: int) -> None:
    model = OneWeight()
    found = optimize(
        one_weight_session(model, loop_keys={"minibatches": count}), rows_of([1] * 10), step=0, on_policy=True
    )
    assert model.updates == count
    assert found["update/grad_norm"] == (pytest.approx(float(count)), float(count))


def test_samples_per_prompt_apply_once_and_the_critic_steps_with_the_policy() -> None:
    policy, critic = OneWeight(), OneWeight(head="value")
    loop_keys = {"samples_per_prompt": 3, "minibatches": 2}
    session = one_weight_session(policy, critic, loader=prompts_of(4), loop_keys=loop_keys)
    rows = session.loader.next_batch(4, 3)
    assert [(row.prompt_index, row.sample_index) for row in rows] == [
        (g, i) for g in range(4) for i in range(3)
    ]
    batch = rows_of([1] * 12)
    batch["group_id"] = torch.tensor([row.prompt_index for row in rows])
    batch["value"], batch["returns"] = torch.zeros(12, 1), torch.ones(12, 1)
    optimize(session, batch, step=0, on_policy=True)
    assert (policy.updates, critic.updates) == (2, 2)


@pytest.mark.parametrize("max_tokens", [1, 2, 100])
@pytest.mark.parametrize("training", [{"minibatches": 1}, {"minibatches": 4, "epochs": 2}])
def test_validation_loss_does_not_depend_on_micro_batches_or_accumulation(
    max_tokens: int, training: dict[str, int]
) -> None:
    """A loss of 2 on every token of three examples, whatever steps and micro-batches the run is made of."""
    model = OneWeight(max_tokens=max_tokens)
    texts = data_of("a", "bc", "def")
    evaluation = Evaluation(num_prompts=3)
    session = one_weight_session(model, eval_examples=texts, evaluation=evaluation, loop_keys=training)
    with torch.no_grad():
        model.scoring_model.weight.zero_()
    session.objective = Objective(loss=_two)
    assert validate(session)["eval/loss"] == pytest.approx(2.0)
    assert model.updates == 0


def _two(policy: titanrl.PolicyOutputs, batch: TensorDict) -> titanrl.TokenLoss:
    return titanrl.TokenLoss(2.0 + 0.0 * policy.logprob, {})


# ----------------------------------------------- coverage of epochs, ranks and batches


def test_last_examples_of_an_epoch_are_batched_with_the_next() -> None:
    prompts, data = prompts_of(10), data_of(*"abcdefghij")
    for seen in (
        [[row.text for row in prompts.next_batch(4, 1)] for _ in range(5)],
        [[group[0].ids[1] for group in data.next_batch(4).groups] for _ in range(5)],
    ):
        assert [len(each) for each in seen] == [4] * 5
        assert len({*seen[0], *seen[1], *seen[2][:2]}) == 10


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_shard_prompts_covers_every_prompt_of_a_step(degree: int) -> None:
    rows = prompts_of(10).next_batch(10, 2)
    taken = [
        [(rows[number].prompt_index, rows[number].sample_index) for number in share]
        for share in shard_prompts(rows, degree, 8)
    ]
    assert sorted(row for share in taken for row in share) == [
        (group, sample) for group in range(10) for sample in range(2)
    ]
    assert all(
        share == sorted(share) and len(share) in (10 // degree * 2, -(-10 // degree) * 2) for share in taken
    )


def test_minibatches_cover_a_ragged_batch() -> None:
    parts = list(minibatches(rows_of(list(range(1, 11))), count=3, epochs=1, seed=0, step=0))
    assert sorted(len(part) for part in parts) == [3, 3, 4]
    assert sorted(int(i) for part in parts for i in part["input_ids"]) == list(range(1, 11))


# --------------------------------------------------------------- epochs over a batch


@pytest.mark.parametrize("max_tokens", [1, 100])
def test_second_epoch_over_a_batch_uses_the_updated_policy(max_tokens: int) -> None:
    """Three batches of one or four micro-batches, two epochs each; reported as tt-blacksmith #731."""
    chosen = algorithm(loss={"name": "ppo_clip"})
    model = OneWeight(lr=0.01, max_tokens=max_tokens)
    with torch.no_grad():
        model.scoring_model.weight.neg_()  # log-probs are negative
    moved: list[bool] = []
    update = model.update

    def watched(*arguments: Any) -> Any:
        found = update(*arguments)
        moved.append(means(found)["loss/approx_kl"] > 0)
        return found

    session = one_weight_session(model, algorithm=chosen, loop_keys={"epochs": 2})
    session.engine.update = watched
    for step in range(3):
        batch = rows_of([1, 2, 3, 4])
        batch["old_logprob"] = model.score(batch)["logprob"]
        batch["advantage"] = torch.ones(4, 1)
        optimize(session, batch, step, on_policy=True)
    assert moved == [False, True] * 3
