"""The reference is the policy until the first update."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from tests.unit.engine.conftest import make_batch, with_old
from tests.unit.training.sessions import session_of
from titanrl.algorithm.objective import Objective
from titanrl.engine import Engine, engine
from titanrl.engine.settings import FrozenModel
from titanrl.models import tiny
from titanrl.training.stages import score_models

Make = Callable[..., Engine]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects the folders of the models that engines build."""
    folders: list[str] = []
    build = engine.build_model

    def counted(folder: str, *arguments: Any, **options: Any) -> Any:
        folders.append(folder)
        return build(folder, *arguments, **options)

    monkeypatch.setattr(engine, "build_model", counted)
    return folders


def test_lazy_reference_copies_the_policy_only_after_an_update(
    make_engine: Make, objective: Objective, built: list[str]
) -> None:
    live = make_engine(with_reference=True)
    batch = with_old(make_batch(), live)
    before = live.frozen["reference"].score(batch)["logprob"]
    assert live.is_policy("reference")
    assert len(built) == 1
    assert torch.equal(before, live.score(batch)["logprob"])
    live.update(batch, objective, (0.1, 0.0))
    after = live.frozen["reference"].score(batch)["logprob"]
    assert not live.is_policy("reference")
    assert len(built) == 2
    assert torch.equal(after, before)
    assert not torch.equal(live.score(batch)["logprob"], before)


def test_lazy_reference_stays_shared_after_a_skipped_update(make_engine: Make, objective: Objective) -> None:
    live = make_engine(with_reference=True)
    batch = with_old(make_batch(), live)
    batch["loss_weight"] = torch.zeros_like(batch["loss_weight"])
    live.update(batch, objective, (0.0, 0.0))
    assert live.is_policy("reference")


@pytest.mark.slow
def test_lazy_reference_of_a_resumed_run_is_a_copy(
    make_engine: Make, objective: Objective, tmp_path: Path
) -> None:
    first = make_engine(with_reference=True, checkpoints=tmp_path)
    batch = with_old(make_batch(), first)
    expected = first.frozen["reference"].score(batch)["logprob"]
    first.update(batch, objective, (0.0, 0.0))
    first.save(1, last=True)
    first.close()
    resumed = make_engine(with_reference=True, checkpoints=tmp_path)
    assert resumed.load()
    assert not resumed.is_policy("reference")
    assert torch.equal(resumed.frozen["reference"].score(batch)["logprob"], expected)


@pytest.mark.slow
def test_reference_with_other_weights_is_loaded_immediately(
    make_engine: Make, tmp_path: Path, built: list[str], model_folder: Path
) -> None:
    other = tiny.create(tmp_path / "other", seed=1, scale=0.2)
    live = make_engine(frozen={"reference": FrozenModel(str(other))})
    assert not live.is_policy("reference")
    # Rounded weights differ if the policy computes in float32.
    rounded = make_engine(frozen={"reference": FrozenModel(str(model_folder), "bfloat16")})
    assert not rounded.is_policy("reference")
    assert len(built) == 4


def test_reference_logprobs_take_no_second_pass_before_the_first_update(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = make_engine(with_reference=True)
    passes = []
    score = live.policy.scoring_model.score
    monkeypatch.setattr(
        live.policy.scoring_model, "score", lambda *a, **k: passes.append(1) or score(*a, **k)
    )
    keys = frozenset({"old_logprob", "ref_logprob"})
    session = session_of(cast(Any, live), scored_keys=keys)
    batch = score_models(session, make_batch(), on_policy=False)
    assert len(passes) == 1
    assert torch.equal(batch["ref_logprob"], batch["old_logprob"])
    assert float(batch["ref_logprob"].abs().max()) > 0
