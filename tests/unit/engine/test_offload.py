"""Frozen models with weights in CPU memory: their device, and equal results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import titanrl.models.accelerator  # noqa: F401  # isort: skip  # before torchtitan

import pytest
import torch
import torchtitan.distributed.fsdp
from torch.distributed.fsdp import CPUOffloadPolicy

from tests.unit.engine.conftest import make_batch, with_old
from titanrl.algorithm.objective import Objective
from titanrl.config.engine_tables import ActivationCheckpoint, Optimizer, Parallelism, Training
from titanrl.engine import Engine
from titanrl.engine.allocate import allocate
from titanrl.engine.scoring_model import ScoringModel
from titanrl.engine.settings import FrozenModel
from titanrl.models import tiny
from titanrl.models.memory import Model, estimate_memory
from titanrl.models.read_config import read_config

Make = Callable[..., Engine]


@pytest.fixture
def unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchTitan pins offloaded weights, which needs a GPU; the rest of FSDP2's offloading does not."""
    policy = partial(CPUOffloadPolicy, pin_memory=False)
    monkeypatch.setattr(torchtitan.distributed.fsdp, "CPUOffloadPolicy", policy)


def fsdp_parameters(role: ScoringModel) -> Iterator[Any]:
    for module in role.model.fsdp_modules():
        for group in module._get_fsdp_state()._fsdp_param_groups:
            yield from group.fsdp_params


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_offloaded_weights_are_gathered_from_cpu_memory_and_freed(
    make_engine: Make, tmp_path: Path, unpinned: None, family: Any
) -> None:
    folder = str(tiny.create(tmp_path / "model", model_type=family, scale=0.2))
    engine, batch = make_engine(), make_batch()
    here, offloaded = (
        engine._scoring_model(folder, frozen_dtype="float32", offload=each) for each in (False, True)
    )
    actual = offloaded.score(batch, ("logprob", "entropy"))
    for key, value in here.score(batch, ("logprob", "entropy")).items():
        assert torch.equal(actual[key], value)
    assert float(actual["logprob"].abs().max()) > 1
    assert not any(each.offload_to_cpu for each in fsdp_parameters(here))
    for each in fsdp_parameters(offloaded):
        assert each.offload_to_cpu
        assert each.sharded_param.device.type == "cpu"
        assert not any(gathered.untyped_storage().size() for gathered in each.all_gather_outputs)


def test_offloaded_model_has_its_buffers_on_the_device(make_engine: Make, tmp_path: Path) -> None:
    """The ``meta`` device represents the GPU."""
    folder = str(tiny.create(tmp_path / "model", model_type="deepseek_v3", scale=0.2))
    (part,) = make_engine()._scoring_model(folder, frozen_dtype="float32").model.parts
    allocate(part, torch.device("meta"), offload=True)
    assert {each.device.type for each in part.parameters()} == {"cpu"}
    assert {each.device.type for each in part.buffers()} == {"meta"}
    assert {name.rpartition(".")[2] for name, _ in part.named_buffers()} >= {"cache", "expert_bias_E"}


@pytest.mark.slow
def test_offload_has_no_effect_on_cpu(make_engine: Make, objective: Objective) -> None:
    folder = make_engine()._config.model
    scores = []
    for offload in (False, True):
        engine = make_engine(frozen={"reference": FrozenModel(folder, offload=offload)})
        batch = with_old(make_batch(), engine)
        engine.update(batch, objective, (0.1, 0.0))
        assert not engine.is_policy("reference")
        scores.append(engine.frozen["reference"].score(batch)["logprob"])
    assert torch.equal(*scores)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_offloaded_model_takes_no_gpu_memory_between_passes(make_engine: Make) -> None:
    engine, batch = make_engine(), make_batch()
    folder = engine._config.model
    before = torch.cuda.memory_allocated()
    offloaded = engine._scoring_model(folder, frozen_dtype="float32", offload=True)
    actual = offloaded.score(batch)["logprob"]
    assert all(each.sharded_param.is_pinned() for each in fsdp_parameters(offloaded))
    held = torch.cuda.memory_allocated() - before
    assert held < sum(each.nbytes for each in offloaded.model.parameters()) / 4
    torch.testing.assert_close(actual, engine.score(batch)["logprob"])


def test_memory_estimate_moves_offloaded_weights_to_the_host(model_folder: Path) -> None:
    """It is unsharded for a scoring pass, when there are no activations: the larger of the two counts."""
    config = read_config(str(model_folder))

    def parts(offload: bool, tokens: int) -> dict[str, tuple[int, bool]]:
        policy = Model(
            name="policy", config=config, is_value_model=False, dtype="float32", optimizer=Optimizer()
        )
        reference = Model(
            name="reference",
            config=config,
            is_value_model=False,
            dtype="bfloat16",
            optimizer=None,
            offload=offload,
        )
        training = Training(max_tokens_per_microbatch=tokens)
        actual = estimate_memory([policy, reference], Parallelism(), training, ActivationCheckpoint(), 2)
        return {each.name: (each.size, each.is_on_host) for each in actual}

    for tokens, larger in ((1, "reference: gathered weights"), (1000, "activations")):
        here, offloaded = parts(False, tokens), parts(True, tokens)
        weights = here.pop("reference: weights")
        assert weights == (here["policy: weights"][0] // 2, False)
        assert offloaded.pop("reference: weights") == (weights[0], True)
        (smaller,) = {"reference: gathered weights", "activations"} - {larger}
        assert here.pop(smaller)[0] < here[larger][0]
        assert offloaded == here
