"""Progress bars in a terminal and progress lines elsewhere."""

from __future__ import annotations

import pytest
from rich.console import Console

from titanrl.report.progress import progress_bar


def counted(console: Console, **keys: bool) -> str:
    with progress_bar("rows scored", 40, console=console, **keys) as advance:
        for count in (3, 1, 16, 19, 1):
            advance(count)
    return console.export_text()


@pytest.mark.parametrize(("terminal", "live"), [(False, True), (True, False)])
def test_plain_stream_gets_a_line_per_tenth(terminal: bool, live: bool) -> None:
    console = Console(record=True, width=80, force_terminal=terminal)
    assert counted(console, live=live).splitlines() == [
        "rows scored 4/40",
        "rows scored 20/40",
        "rows scored 39/40",
        "rows scored 40/40",
    ]


def test_terminal_shows_a_bar() -> None:
    text = counted(Console(record=True, width=80, force_terminal=True))
    assert "40/40" in text
    assert "0:00 left" in text
    assert "\u2501" in text


def test_other_ranks_show_nothing() -> None:
    assert counted(Console(record=True, width=80), enabled=False) == ""
