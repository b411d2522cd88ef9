"""Real vLLM in this process: weights arrive by value, samples follow seeds, the process stays as it was."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from titanrl.components.samplers.vllm import CPU_HEAD_DIMS, VLLM
from titanrl.models import tiny
from titanrl.ops.seeds import sample_seed
from titanrl.protocols import (
    Ask,
    Completion,
    Environment,
    RolloutRequest,
    SamplerContext,
    Sampling,
    StreamRequest,
    Trajectory,
)
from titanrl.rollout.environments.episode import Limits
from titanrl.rollout.environments.runner import EnvironmentRunner

pytest.importorskip("vllm")
pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

LENGTH = 128
# Longer than two blocks of the prefix cache, so that stale keys and values would be found.
PROMPTS = ([1, *range(4, 84)], [1, 7, 9], [1, *range(4, 74), 5])
SHAPES = [("llama", True), ("llama", False), ("qwen3", True)]


def make(path: Path, seed: int, family: Any = "llama", tied: bool = True) -> Path:
    # Heads of 64, as vLLM's CPU attention wants them; predictions far from uniform, so that faults show.
    return tiny.create(
        path, model_type=family, tied=tied, hidden=128, heads=2, kv_heads=1, layers=3, scale=0.15, seed=seed
    )


def host_of(folder: Path, **fields: Any) -> SamplerContext:
    return SamplerContext(model_path=str(folder), eos_ids=(2,), max_length=LENGTH, seed=0, **fields)


def start(folder: Path, **settings: Any) -> Any:
    settings = {"max_response_tokens": 16, "kv_cache_gib": 0.05, "max_num_seqs": 16, **settings}
    return VLLM(**settings).start(host_of(folder))


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(str(folder / "model.safetensors"))


def rows_of(samples: int = 1, groups: Sequence[int] = (0, 1, 2)) -> list[RolloutRequest]:
    return [RolloutRequest(PROMPTS[group], group, sample) for group in groups for sample in range(samples)]


def assert_same(left: list[Completion], right: list[Completion], tolerance: float = 1e-5) -> None:
    assert [list(sample.ids) for sample in left] == [list(sample.ids) for sample in right]
    for one, other in zip(left, right, strict=True):
        torch.testing.assert_close(
            torch.tensor(one.logprobs), torch.tensor(other.logprobs), atol=tolerance, rtol=0
        )


def parameters_of(sampler: Any) -> dict[str, torch.Tensor]:
    """Reads every parameter from what computes: a packed layer by the rows of the identity it is given."""
    model = sampler._llm.apply_model(lambda model: model)[0]
    found = {}
    for name, module in model.named_modules():
        if hasattr(module, "cpu_linear"):
            columns = getattr(module, "input_size_per_partition", None) or module.weight.shape[1]
            found[name] = module.cpu_linear(torch.eye(columns), module.weight, None).T.clone()
        elif dict(module.named_parameters(recurse=False)):
            found[name] = module.weight.clone()
    return found


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    family, tied = request.param
    return make(root / "old", 0, family, tied), make(root / "new", 1, family, tied)


@pytest.fixture(scope="module")
def sampler(folders: tuple[Path, Path]) -> Iterator[Any]:
    sampler = start(folders[0])
    yield sampler
    sampler.close()


@pytest.fixture
def untouched(sampler: Any, folders: tuple[Path, Path]) -> Any:
    sampler.load(weights_of(folders[0]).items(), version=0)
    return sampler


def test_updated_engine_equals_a_fresh_one(untouched: Any, folders: tuple[Path, Path]) -> None:
    before = untouched.sample(rows_of(2), step=0, seed=0, greedy=True)
    untouched.load(weights_of(folders[1]).items(), version=5)
    after = untouched.sample(rows_of(2), step=0, seed=0, greedy=True)
    fresh = start(folders[1])
    try:
        expected = fresh.sample(rows_of(2), step=0, seed=0, greedy=True)
        sampled = fresh.sample(rows_of(4), step=3, seed=0)
    finally:
        fresh.close()
    assert untouched.version == 5
    assert [sample.ids for sample in before] != [sample.ids for sample in expected]
    assert_same(after, expected)
    assert_same(untouched.sample(rows_of(4), step=3, seed=0), sampled)


def test_adding_one_moves_every_parameter_by_one(untouched: Any, folders: tuple[Path, Path]) -> None:
    before = parameters_of(untouched)
    vocabulary = len(weights_of(folders[0])["model.embed_tokens.weight"])
    untouched.load(((name, value + 1) for name, value in weights_of(folders[0]).items()), version=1)
    after = parameters_of(untouched)
    assert set(before) == set(after)
    assert {"model.layers.0.self_attn.qkv_proj", "model.layers.2.mlp.gate_up_proj", "lm_head"} <= set(after)
    for name, old in before.items():
        is_padded = name in ("lm_head", "model.embed_tokens")
        moved = (after[name] - old).detach()[: vocabulary if is_padded else None]
        assert float((moved - 1).abs().max()) < 1e-5, name


def test_logprobs_are_those_of_the_tempered_distribution(untouched: Any, folders: tuple[Path, Path]) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folders[0], dtype=torch.float32)
    for temperature in (1.0, 0.7):
        for row, answer in zip(
            rows_of(2), untouched.sample(rows_of(2), step=0, seed=1, temperature=temperature), strict=True
        ):
            with torch.no_grad():
                logits = model(torch.tensor([[*row.prompt_ids, *answer.ids]])).logits[0]
            expected = (logits / temperature).log_softmax(-1)[len(row.prompt_ids) - 1 : -1]
            expected = expected.gather(1, torch.tensor(answer.ids).unsqueeze(1)).squeeze(1)
            torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=1e-4, rtol=0)


def test_max_tokens_of_a_call_limits_its_responses(untouched: Any) -> None:
    short, usual, long = (
        untouched.sample(rows_of(), step=0, seed=0, max_tokens=most) for most in (3, None, 20)
    )
    for one, two, three in zip(short, usual, long, strict=True):
        assert (one.ids, two.ids) == (three.ids[:3], three.ids[:16])
    assert max(len(each.ids) for each in long) > 16


def test_samples_follow_their_seeds_whatever_the_batch(untouched: Any) -> None:
    rows = rows_of(4)
    together = untouched.sample(rows, step=2, seed=9)
    assert len({tuple(sample.ids) for sample in together}) == len(rows)
    # float32 kernels of other batch sizes round otherwise: 1e-5 in log-probs was never exceeded here.
    assert_same(together, [untouched.sample([row], step=2, seed=9)[0] for row in rows])
    assert_same(together, untouched.sample(rows[::-1], step=2, seed=9)[::-1])
    for other in ({"step": 3, "seed": 9}, {"step": 2, "seed": 10}):
        answers = untouched.sample(rows, **other)
        assert [sample.ids for sample in answers] != [sample.ids for sample in together]


def test_responses_include_eos(untouched: Any) -> None:
    rows = [RolloutRequest(PROMPTS[1], 0, sample) for sample in range(100)]
    answers = untouched.sample(rows, step=0, seed=0, temperature=2.0)
    assert {answer.finish_reason for answer in answers} == {0, 1}
    for answer in answers:
        assert len(answer.ids) == len(answer.logprobs)
        assert 2 not in answer.ids[:-1]
        assert (answer.ids[-1] == 2) == (answer.finish_reason == 0)
        assert answer.finish_reason == 0 or len(answer.ids) == 16


def test_only_configured_stop_tokens_end_a_response(untouched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # The folder's generation_config.json names token 2, which vLLM would add by itself.
    free = untouched.sample(rows_of(), step=0, seed=0)
    monkeypatch.setattr(untouched, "_stops", [free[0].ids[3]])
    rows = [RolloutRequest(PROMPTS[1], 0, sample) for sample in range(100)]
    answers = untouched.sample(rows, step=0, seed=0, temperature=2.0)
    assert any(2 in answer.ids[:-1] for answer in answers)
    stopped = untouched.sample(rows_of(), step=0, seed=0)[0]
    assert stopped.finish_reason == 0
    assert list(stopped.ids) == list(free[0].ids)[: list(free[0].ids).index(free[0].ids[3]) + 1]


def test_invalid_weights_are_refused_and_never_sampled(untouched: Any, folders: tuple[Path, Path]) -> None:
    weights = weights_of(folders[0])
    name = "model.layers.1.mlp.up_proj.weight"
    cases = [
        ({key: value for key, value in weights.items() if key != name}, f"1 weights .* {name}"),
        (weights | {"model.layers.9.mlp.up_proj.weight": weights[name]}, "has no weight 'model.layers.9"),
        (weights | {name: weights[name].T}, "must be .256, 128. for vLLM, got .128, 256."),
    ]
    for broken, message in cases:
        with pytest.raises(ValueError, match=message):
            untouched.load(broken.items(), version=1)
        with pytest.raises(RuntimeError, match="has no weights to sample with"):
            untouched.sample(rows_of(), step=0, seed=0)
    untouched.load(weights.items(), version=2)
    assert untouched.sample(rows_of(), step=0, seed=0)


def test_impossible_requests_are_refused(untouched: Any) -> None:
    with pytest.raises(ValueError, match="makes 129, more than the 128"):
        untouched.sample([RolloutRequest([1] * 113, 0, 0)], step=0, seed=0)
    with pytest.raises(ValueError, match=r"temperature must be in .0.01, 2."):
        untouched.sample(rows_of(), step=0, seed=0, temperature=0.0)
    assert untouched.sample([], step=0, seed=0) == []


def test_sampling_leaves_the_random_state(untouched: Any) -> None:
    import numpy

    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tobytes()
    untouched.sample(rows_of(), step=0, seed=0)
    untouched.sleep()
    untouched.wake()
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), numpy.random.get_state()[1].tobytes())


def test_weights_are_refused_while_asleep_and_proved_by_value_after_waking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU engine does not sleep, so vLLM's own calls are counted and the state is set as on a GPU."""
    old, new = make(tmp_path / "old", 0), make(tmp_path / "new", 1)
    engine, fresh = start(old, sleep="discard"), start(new)
    try:
        calls: list[str] = []
        monkeypatch.setattr(engine._llm, "sleep", lambda level: calls.append(f"sleep {level}"))
        monkeypatch.setattr(engine._llm, "wake_up", lambda: calls.append("wake"))
        engine._sleeps = True
        engine.sleep()
        engine.sleep()
        with pytest.raises(RuntimeError, match=r"is asleep and cannot take weights; call wake\(\)"):
            engine.load(weights_of(new).items(), version=1)
        with pytest.raises(RuntimeError, match="has no weights to sample with"):
            engine.sample(rows_of(), step=0, seed=0)
        engine.wake()
        with pytest.raises(RuntimeError, match="has no weights to sample with"):
            engine.sample(rows_of(), step=0, seed=0)
        engine.load(weights_of(new).items(), version=1)
        assert calls == ["sleep 2", "wake"]
        assert_same(
            engine.sample(rows_of(2), step=0, seed=0, greedy=True),
            fresh.sample(rows_of(2), step=0, seed=0, greedy=True),
        )
    finally:
        engine.close()
        fresh.close()


def test_bfloat16_engine_receives_weight_updates(tmp_path: Path) -> None:
    # Without bfloat16 instructions vLLM packs nothing in this precision and keeps plain parameters.
    old, new = make(tmp_path / "old", 0), make(tmp_path / "new", 1)
    updated = start(old, dtype="bfloat16")
    updated.sample(rows_of(2), step=0, seed=0)
    updated.load(weights_of(new).items(), version=1)
    fresh = start(new, dtype="bfloat16")
    try:
        assert_same(
            updated.sample(rows_of(2), step=0, seed=0, greedy=True),
            fresh.sample(rows_of(2), step=0, seed=0, greedy=True),
        )
    finally:
        fresh.close()
        updated.close()


def test_process_state_is_restored(tmp_path: Path) -> None:
    def state() -> tuple[Any, ...]:
        return (
            dict(os.environ),
            torch.get_rng_state().tolist(),
            random.getstate(),
            torch.get_num_threads(),
            torch.set_num_threads,
            os.sched_getaffinity(0),
            list(warnings.filters),
            torch.get_default_dtype(),
            os.getcwd(),
            torch.is_grad_enabled(),
        )

    torch.set_num_threads(2)
    before = state()
    sampler = start(make(tmp_path / "model", 0))
    after = state()
    sampler.close()
    assert before == after
    torch.set_num_threads(1)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("tied_and_shared", [(True, False), (False, True)])
def test_colocated_sampler_logprobs_equal_the_trainers(
    tmp_path: Path, tied_and_shared: tuple[bool, bool]
) -> None:
    """The sampler does not get the critic's head on the policy's backbone."""
    from titanrl.config.engine_tables import Training
    from titanrl.data.collate import collate_rollouts
    from titanrl.engine.engine import Engine, EngineConfig
    from titanrl.engine.settings import CriticModel

    tied, shared = tied_and_shared
    folder = make(tmp_path / "model", 0, tied=tied)
    training = Training(seq_len=LENGTH, mixed_precision_param="float32")
    critic = CriticModel(path=None) if shared else None
    engine = Engine(EngineConfig(model=str(folder), temperature=0.7, training=training, critic=critic))
    settings = VLLM(temperature=0.7, max_response_tokens=16, kv_cache_gib=0.05)
    sampler = settings.start(host_of(folder, engine=engine))
    try:
        with pytest.raises(RuntimeError, match="has no weights"):
            sampler.sample(rows_of(), step=0, seed=0)
        sampler.load(engine.weights(), version=0)
        rows = rows_of(4)
        batch = collate_rollouts(rows, sampler.sample(rows, step=0, seed=0), decode=str, version=0)
        scored = engine.score(batch)["logprob"]
        mask = batch["loss_mask"]
        assert float((scored - batch["sampler_logprob"])[mask].abs().mean()) < 1e-4
    finally:
        sampler.close()
    assert torch.distributed.is_initialized()


def test_check_allows_the_head_sizes_of_the_engine() -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert CPUAttentionBackend.get_supported_head_sizes() == list(CPU_HEAD_DIMS)


def test_stream_gives_the_responses_of_sample_and_drops_aborted_ones(untouched: Any) -> None:
    sampler = untouched
    rows = rows_of(samples=2)
    wanted = sampler.sample(rows, step=0, seed=3)
    greedy = sampler.sample(rows[:1], step=0, seed=3, greedy=True)
    stream = sampler.stream()
    for key, row in enumerate(rows):
        seed = sample_seed(3, 0, row.prompt_index, row.sample_index)
        stream.add(StreamRequest(key, row, seed, 1.0, 16, num_top=2 if key == 0 else 0))
    stream.add(StreamRequest(90, rows[0], 0, None, 16))
    stream.add(StreamRequest(91, rows[1], 0, 1.0, 40))
    with pytest.raises(ValueError, match="tokens"):
        stream.add(StreamRequest(92, RolloutRequest([1] * 127, 0, 0), 0, 1.0, 16))
    events = stream.step()
    stream.abort([91, 12345])
    while new := stream.step():
        assert all(event.key != 91 for event in new)
        events += new
    stream.close()
    for key, completion in [*enumerate(wanted), (90, greedy[0])]:
        own = [event for event in events if event.key == key]
        streamed = Completion([e.token for e in own], [e.logprob for e in own], own[-1].finish_reason)
        assert_same([streamed], [completion], 1e-4)
        assert streamed.finish_reason == completion.finish_reason
        assert {len(event.top) for event in own} == {2 if key == 0 else 0}
    assert_same(sampler.sample(rows, step=0, seed=3), wanted, 1e-4)


class Turns(Environment):
    """Asks three times and adds tokens in between; another agent starts from the prompt again."""

    async def run(self, row: RolloutRequest, ask: Ask) -> Trajectory:
        ids = list(row.prompt_ids)
        for turn in range(3):
            ids += [*(await ask(ids, Sampling(max_tokens=4 + turn))).ids, 7, 9]
        await ask([*row.prompt_ids, 9], Sampling(agent_id=1))
        return Trajectory()


def test_logprobs_over_turns_are_those_of_one_pass_over_the_row(
    untouched: Any, folders: tuple[Path, Path]
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folders[0], dtype=torch.float32)
    runner = EnvironmentRunner(
        Turns(), Limits(LENGTH, 16, 4), timeout_seconds=30, concurrency=8, by_turn=False
    )
    rollouts = runner.run(rows_of(2), untouched.stream, step=0, seed=1, temperature=1.0, version=0)
    runner.close()
    assert [len(rollout.rows) for rollout in rollouts] == [2] * 6
    assert len({tuple(each.row.completion.ids) for rollout in rollouts for each in rollout.rows}) == 12
    for row in (each.row for rollout in rollouts for each in rollout.rows):
        prompt, completion = list(row.prompt_ids), row.completion
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *completion.ids]])).logits[0]
        expected = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        expected = expected.gather(1, torch.tensor(completion.ids).unsqueeze(1)).squeeze(1)
        mask = torch.tensor(completion.mask)
        torch.testing.assert_close(torch.tensor(completion.logprobs)[mask], expected[mask], atol=1e-4, rtol=0)
