"""The `torch` sampler on a tiny random model: the trainer's log-probs, samples a function of their seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from titanrl.components.samplers.torch import Torch
from titanrl.config.engine_tables import ActivationCheckpoint, Training
from titanrl.data.collate import collate_rollouts
from titanrl.engine.engine import Engine, EngineConfig
from titanrl.models import tiny
from titanrl.protocols import Completion, RolloutRequest, SamplerContext

PROMPTS = ([1, 5, 9, 13, 20, 31], [1, 7], [1, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50])


def rows_of(groups: Sequence[int] = (0, 1, 2), samples: int = 3) -> list[RolloutRequest]:
    return [RolloutRequest(PROMPTS[group], group, sample) for group in groups for sample in range(samples)]


def engine_of(folder: Path, temperature: float = 1.0, **tables: Any) -> Engine:
    training = Training(seq_len=64, max_tokens_per_microbatch=256, mixed_precision_param="float32")
    return Engine(EngineConfig(model=str(folder), temperature=temperature, training=training, **tables))


def host_of(engine: Any, **fields: Any) -> SamplerContext:
    return SamplerContext(model_path="", eos_ids=(2,), max_length=64, seed=0, engine=engine, **fields)


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    # Weights this large make predictions far from uniform, so that a wrong position or cache shows.
    return tiny.create(path, model_type=request.param, scale=0.4, layers=3)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    engine = engine_of(folder)
    yield engine
    engine.close()


def sample(
    engine: Any, rows: Sequence[RolloutRequest], *, step: int = 0, seed: int = 7, **settings: Any
) -> list[Completion]:
    sampler = Torch(**{"max_response_tokens": 24, **settings}).start(host_of(engine))
    return sampler.sample(rows, step=step, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.3])
def test_logprobs_are_the_trainers(folder: Path, temperature: float) -> None:
    engine = engine_of(folder, temperature)
    rows = rows_of()
    answers = sample(engine, rows, temperature=temperature)
    batch = collate_rollouts(rows, answers, decode=str, version=0)
    scored = engine.score(batch, keys=("logprob",))["logprob"]
    mask = batch["loss_mask"]
    assert int(mask.sum()) == sum(len(answer.ids) for answer in answers) > 20
    gap = (scored - batch["sampler_logprob"])[mask].abs()
    assert float(gap.max()) < 1e-4
    # A sampler that ignored the temperature would be this far off.
    if temperature != 1:
        other = engine_of(folder, 1.0).score(batch, keys=("logprob",))["logprob"]
        assert float((other - batch["sampler_logprob"])[mask].abs().mean()) > 0.05


@pytest.mark.slow
def test_same_seed_gives_the_same_responses_in_any_batch(engine: Engine) -> None:
    rows = rows_of()
    together = sample(engine, rows)
    alone = [sample(engine, [row])[0] for row in rows]
    backwards = sample(engine, rows[::-1], max_rows=2)[::-1]
    for left, middle, right in zip(together, alone, backwards, strict=True):
        assert list(left.ids) == list(middle.ids) == list(right.ids)
        torch.testing.assert_close(
            torch.tensor(left.logprobs), torch.tensor(middle.logprobs), atol=1e-5, rtol=2e-6
        )


@pytest.mark.slow
def test_samples_groups_steps_and_seeds_differ(engine: Engine) -> None:
    rows = [RolloutRequest(PROMPTS[0], group, sample) for group in (0, 1) for sample in range(3)]
    answers = [tuple(answer.ids) for answer in sample(engine, rows)]
    answers += [tuple(answer.ids) for answer in sample(engine, rows, step=1) + sample(engine, rows, seed=8)]
    assert len(set(answers)) > 15


def test_greedy_responses_match_recomputing_without_a_cache(engine: Engine) -> None:
    sampler = Torch(max_response_tokens=12).start(host_of(engine))
    answers = sampler.sample(rows_of(samples=1), step=0, seed=0, greedy=True)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = list(prompt)
        with engine.inference() as parts:
            for token, logprob in zip(answer.ids, answer.logprobs, strict=True):
                expected = parts[0](torch.tensor([ids]))[0, -1].log_softmax(-1)
                assert int(expected.argmax()) == token
                assert float(expected.max()) == pytest.approx(logprob, abs=1e-5)
                ids.append(token)


@pytest.mark.slow
def test_responses_end_with_eos_or_at_the_limit(engine: Engine) -> None:
    rows = [RolloutRequest(PROMPTS[1], 0, sample) for sample in range(60)]
    answers = sample(engine, rows, temperature=3.0, max_response_tokens=40)
    reasons = {answer.finish_reason for answer in answers}
    assert reasons == {0, 1}
    for answer in answers:
        assert len(answer.ids) == len(answer.logprobs)
        assert 2 not in answer.ids[:-1]
        assert (answer.ids[-1] == 2) == (answer.finish_reason == 0)
        if answer.finish_reason == 1:
            assert len(answer.ids) == 40
    lone = [sample(engine, [row], temperature=3.0, max_response_tokens=40)[0] for row in rows[:8]]
    assert [list(answer.ids) for answer in lone] == [list(answer.ids) for answer in answers[:8]]


def test_responses_follow_the_distribution(engine: Engine) -> None:
    rows = [RolloutRequest(PROMPTS[0], 0, sample) for sample in range(2000)]
    answers = sample(engine, rows, max_response_tokens=1, max_rows=2000)
    with engine.inference() as parts:
        probability = parts[0](torch.tensor([PROMPTS[0]]))[0, -1].softmax(-1).double()
    counts = torch.bincount(torch.tensor([answer.ids[0] for answer in answers]), minlength=len(probability))
    likely = probability * 2000 > 5
    chi = ((counts - 2000 * probability)[likely] ** 2 / (2000 * probability[likely])).sum()
    degrees = int(likely.sum())
    assert float(chi) < degrees + 5 * math.sqrt(2 * degrees)


def test_top_k_one_is_greedy_and_certain(engine: Engine) -> None:
    greedy = (
        Torch(max_response_tokens=8).start(host_of(engine)).sample(rows_of(), step=0, seed=0, greedy=True)
    )
    narrow = sample(engine, rows_of(), top_k=1, max_response_tokens=8)
    assert [answer.ids for answer in greedy] == [answer.ids for answer in narrow]
    assert all(value == 0 for answer in narrow for value in answer.logprobs)


@pytest.mark.slow
def test_stop_tokens_end_a_response_and_belong_to_it(engine: Engine) -> None:
    free = sample(engine, rows_of())[0]
    stopped = sample(engine, rows_of(), stop_token_ids=(free.ids[2],))[0]
    end = list(free.ids).index(free.ids[2]) + 1
    assert list(stopped.ids) == list(free.ids)[:end]
    assert stopped.finish_reason == 0


def test_modules_are_left_as_they_were(engine: Engine) -> None:
    state = torch.get_rng_state()
    sample(engine, rows_of())
    assert torch.equal(state, torch.get_rng_state())
    for layer in engine.modules[0].layers.values():
        assert "forward" not in vars(layer.attention.inner_attention)


@pytest.mark.slow
def test_checkpointed_layers_decode_alike(folder: Path, engine: Engine) -> None:
    other = engine_of(folder, activation_checkpoint=ActivationCheckpoint(mode="full"))
    assert sample(other, rows_of()) == sample(engine, rows_of())


def test_no_requests_give_no_completions(engine: Engine) -> None:
    assert sample(engine, []) == []


def test_long_and_empty_prompts_are_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="65, more than the 64 of"):
        sample(engine, [RolloutRequest([1] * 41, 0, 0)])
    with pytest.raises(ValueError, match="group 3 has no tokens"):
        sample(engine, [RolloutRequest([], 3, 0)])


def test_version_counts_without_asking_for_weights(engine: Engine) -> None:
    sampler = Torch().start(host_of(engine))

    def refuse() -> Iterator[tuple[str, torch.Tensor]]:
        raise AssertionError("asked for weights")
        yield

    sampler.load(refuse(), version=4)
    assert sampler.version == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", 0.0), ("temperature", -1.0), ("max_response_tokens", 0), ("top_p", 0.0), ("top_k", -2)],
)
def test_settings_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} must be in"):
        Torch(**{field: value})


def test_max_tokens_does_not_change_the_common_prefix(engine: Engine) -> None:
    """Longer than the settings' too, on which nothing else depends; prompts must leave room for it."""
    sampler = Torch(max_response_tokens=6).start(host_of(engine))
    lengths = {}
    for max_tokens in (None, 2, 11):
        answers = sampler.sample(rows_of(), step=0, seed=7, max_tokens=max_tokens)
        lengths[max_tokens] = [list(answer.ids) for answer in answers]
    assert {len(ids) for ids in lengths[2]} <= {1, 2}
    assert max(len(ids) for ids in lengths[11]) == 11
    for short, usual, long in zip(*(lengths[key] for key in (2, None, 11)), strict=True):
        assert (short, usual) == (long[:2], long[:6])
    with pytest.raises(ValueError, match="max_response_tokens = 53 that makes 65, more than the 64"):
        sampler.sample(rows_of(), step=0, seed=7, max_tokens=53)
