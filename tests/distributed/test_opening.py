"""Ranks open one run folder together, and a refused resume ends all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.test_rewards import FILE
from tests.distributed.torchrun import launch

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(300)]
WORKER = Path(__file__).parent / "opening_worker.py"


def test_ranks_share_a_folder_and_its_refusals(tmp_path: Path) -> None:
    text = FILE.replace("FOLDER", str(tmp_path)).replace('"moody"\npatience = 2', '"repetition"')
    (tmp_path / "grpo.toml").write_text(f'{text}\n[run]\nfolder = "{tmp_path}/runs"\n')
    first, second = launch(WORKER, tmp_path, 2, timeout_seconds=250)
    assert first == second
    assert first["path"] == f"{tmp_path}/runs/grpo"
    assert "is being written by process" in first["in use"]
    assert "found no complete checkpoint" in first["no checkpoint"]
    assert (tmp_path / "runs" / "grpo" / "run.lock").read_text() == ""
