"""JSON lines: nothing before the step resumed from is deleted or rewritten, whatever the file holds."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path

import pytest

from titanrl.report.jsonl import JsonLines, read_jsonl
from titanrl.report.metrics import read_metrics


def line(step: int, text: str = "") -> bytes:
    return json.dumps({"step": step, "x": text}, ensure_ascii=False).encode() + b"\n"


def superseded(path: Path) -> bytes:
    return b"".join(each.read_bytes() for each in sorted((path.parent / "superseded").glob("*")))


@pytest.mark.parametrize(
    ("content", "kept", "moved"),
    [
        (line(0) + line(1) + line(2) + line(3), line(0) + line(1) + line(2), line(3)),
        (line(1) + b'{"step": 2, "x\n' + line(2), line(1) + b'{"step": 2, "x\n' + line(2), b""),
        (line(1) + b"\xff\xfe\n" + line(2) + line(3), line(1) + b"\xff\xfe\n" + line(2), line(3)),
        (line(2) + line(3) + b"{broken\n" + line(4), line(2), line(3) + b"{broken\n" + line(4)),
        (line(2) + b'{"step": 3, "x": "\xc3', line(2), b'{"step": 3, "x": "\xc3\n'),
        (line(2) + b'{"st', line(2), b'{"st\n'),
        (line(2) + line(3)[:-1], line(2), line(3)),
        (line(1) + line(2)[:-1], line(1) + line(2), b""),
        (line(2) + b"\0" * 9000, line(2), b"\0" * 9000 + b"\n"),
        # Two processes wrote the file: lines before the step stay, in their order.
        (line(1) + line(3) + line(2, "b") + line(4), line(1) + line(2, "b"), line(3) + line(4)),
        (line(1) + b"3\n[]\n\n" + b'{"note": 1}\n' + line(2), None, b""),
        (line(2, "a\u2028b\x85\x0bc") + line(3), line(2, "a\u2028b\x85\x0bc"), line(3)),
        (b"", b"", b""),
    ],
)
def test_only_repeated_and_incomplete_lines_are_moved(tmp_path, content, kept, moved):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    lines = JsonLines(path, 3)
    assert path.read_bytes() == (content if kept is None else kept)
    assert superseded(path) == moved
    assert lines.num_moved == moved.count(b"\n")
    lines.write({"step": 3})
    lines.close()
    assert path.read_bytes() == (content if kept is None else kept) + b'{"step": 3}\n'


def test_lines_superseded_twice_are_all_there(tmp_path):
    path = tmp_path / "samples.jsonl"
    for text in "abc":
        lines = JsonLines(path, 2)
        lines.write({"step": 1, "x": text})
        lines.write({"step": 2, "x": text})
        lines.close()
    assert [each["x"] for each in read_jsonl(path)] == ["a", "b", "c", "c"]
    moved = tmp_path / "superseded" / "samples-from-step-00002.jsonl"
    assert [each["x"] for each in read_jsonl(moved)] == ["a", "b"]


@pytest.mark.slow
def test_random_damage_never_costs_a_byte_of_an_earlier_line(tmp_path):
    draw = random.Random(0)
    path = tmp_path / "metrics.jsonl"
    for _ in range(300):
        raws = [line(step, draw.choice(["", "é", "\u2028", "x" * 50])) for step in range(1, 9)]
        for _ in range(draw.randrange(3)):
            at = draw.randrange(len(raws))
            raws[at] = bytes(draw.choice(b'{}",\xff\x00 a') for _ in range(draw.randrange(1, 20))) + b"\n"
        content = b"".join(raws)
        content = content[: len(content) - draw.randrange(60)]
        path.write_bytes(content)
        first = draw.randrange(1, 10)
        earlier = [
            raw
            for raw in content.splitlines(keepends=True)
            if raw.startswith(b'{"step"') and raw.endswith(b"}\n") and json.loads(raw)["step"] < first
        ]
        JsonLines(path, first).close()
        kept = path.read_bytes()
        assert b"".join(raw for raw in kept.splitlines(keepends=True) if raw in earlier) == b"".join(earlier)
        moved = superseded(path)
        assert sorted(filter(None, (kept + moved).split(b"\n"))) == sorted(filter(None, content.split(b"\n")))
        for file in (tmp_path / "superseded").glob("*"):
            file.unlink()


def test_reader_skips_broken_lines_with_one_warning_that_counts_them(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(1) + b"{broken\n" + b"\xff\n" + line(2) + b'{"step": 3')
    with pytest.warns(UserWarning, match=r"metrics\.jsonl: skipped 2 broken lines: 2, 3\.") as record:
        assert [each["step"] for each in read_jsonl(path)] == [1, 2]
    assert len(record) == 1
    path.write_bytes(line(1) + b"\n" + line(2)[:-4])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [each["step"] for each in read_jsonl(path)] == [1]


def test_last_line_of_a_step_counts_in_metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(1, "old") + line(2, "old") + b'{"note": 1}\n' + line(1, "new") + line(3))
    assert [(each["step"], each["x"]) for each in read_metrics(path)] == [(1, "new"), (2, "old"), (3, "")]


def test_text_that_utf_8_lacks_is_written_as_an_escape(tmp_path):
    lines = JsonLines(tmp_path / "a.jsonl")
    lines.write({"x": "a\ud800é"})
    lines.close()
    assert list(read_jsonl(tmp_path / "a.jsonl")) == [{"x": "a\ud800é"}]
