"""Profiles of single steps."""

from __future__ import annotations

import contextlib
import gzip
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from titanrl.config.report_tables import Profile, profile_problems
from titanrl.config.tables import Loop
from titanrl.report.profile import MEMORY_EVENTS, profiled


def test_profiled_steps_write_one_trace_and_table_per_rank(tmp_path: Path) -> None:
    settings = Profile(steps=(2,))
    for step in (1, 2, 3):
        with profiled(settings, step, tmp_path / "profile", rank=1):
            torch.ones(4, 4) @ torch.ones(4, 4)
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == [
        "step-2-rank-1.json.gz",
        "step-2-rank-1.txt",
    ]
    trace = json.loads(gzip.decompress((tmp_path / "profile" / "step-2-rank-1.json.gz").read_bytes()))
    assert any(event.get("name") == "aten::mm" for event in trace["traceEvents"])
    assert "aten::mm" in (tmp_path / "profile" / "step-2-rank-1.txt").read_text()


def test_profiler_is_off_by_default(tmp_path: Path) -> None:
    with profiled(None, 1, tmp_path / "profile", rank=0):
        pass
    assert not (tmp_path / "profile").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_memory_of_a_step_is_a_snapshot(tmp_path: Path) -> None:
    with profiled(Profile(steps=(1,), trace=False, memory=True), 1, tmp_path, rank=0):
        torch.ones(1024, device="cuda")
    assert (tmp_path / "step-1-rank-0.pickle").stat().st_size > 0


@pytest.mark.parametrize("ends_well", [True, False])
def test_memory_is_recorded_only_during_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_well: bool
) -> None:
    """Without a GPU: checks that this torch accepts each call."""
    calls: list[tuple[str, dict[str, Any]]] = []
    for name in ("_record_memory_history", "_dump_snapshot"):
        signature = inspect.signature(getattr(torch.cuda.memory, name))

        def record(*given: Any, _name: str = name, _taken: Any = signature, **named: Any) -> None:
            calls.append((_name, dict(_taken.bind(*given, **named).arguments)))

        monkeypatch.setattr(torch.cuda.memory, name, record)
    with contextlib.suppress(ValueError):  # noqa: SIM117
        with profiled(Profile(steps=(1,), trace=False, memory=True), 1, tmp_path, rank=3):
            calls.append(("step", {}))
            if not ends_well:
                raise ValueError
    snapshot = [("_dump_snapshot", {"filename": str(tmp_path / "step-1-rank-3.pickle")})]
    assert calls == [
        ("_record_memory_history", {"max_entries": MEMORY_EVENTS}),
        ("step", {}),
        *(snapshot if ends_well else []),
        ("_record_memory_history", {"enabled": None}),
    ]


def test_profile_steps_count_from_the_start_of_the_run() -> None:
    loop = Loop(steps=5, prompts_per_step=1)
    assert profile_problems(Profile(steps=(1, 5)), loop) == []
    (problem,) = profile_problems(Profile(steps=(1, 6)), loop)
    assert "steps must be <= 5, [loop] steps, got 6" in str(problem)
    with pytest.raises(ValueError, match=r"steps must be in \[1, inf\), got 0"):
        Profile(steps=(0,))
