"""The example of the page on the Python API runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/api.md"


@pytest.mark.slow
def test_example_of_the_page_trains_and_evaluates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (source,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    exec(compile(source, "example", "exec"), {})
    printed = capsys.readouterr().out
    for clip_high in ("0.2", "0.28"):
        assert re.search(
            rf"^runs/clip_high_{clip_high}: 0\.\d{{3}} \(0\.\d{{3}} to [01]\.\d{{3}}\)$", printed, re.M
        )
        assert (tmp_path / f"runs/clip_high_{clip_high}/checkpoints").is_dir()
