"""``titanrl check --data``: statistics of an experiment's data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.test_commands import titanrl
from titanrl.cli.scan import histogram

FILE = """
[model]
path = "{model}"
[data]
name = "dataset"
path = "{data}"
format = "messages"
[algorithm.loss]
name = "sft"
[algorithm.aggregation]
name = "token_mean"
[loop]
steps = 1
prompts_per_step = 1
[training]
seq_len = 60
"""


@pytest.fixture
def supervised(model: Path, tmp_path: Path) -> Path:
    """An experiment on five conversations: invalid, without a response, too long, and two valid ones."""
    user, answer = {"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}
    long = {"role": "assistant", "content": "word " * 80}
    records = [[user, answer], [user], [user, long], [user, answer]]
    lines = [json.dumps({"messages": each}) for each in records]
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join([*lines, "{"]))
    path = tmp_path / "sft.toml"
    path.write_text(FILE.format(model=model, data=data))
    return path


def test_scan_names_invalid_and_overlong_rows_and_plots_lengths(supervised: Path) -> None:
    result = titanrl("check", supervised, "--data")
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    for text in (
        "rows.jsonl:2: messages has no assistant message",
        "rows.jsonl:3: [data] has a row of",
        "rows.jsonl:5: not JSON",
        "[data] 5 examples, 3 that cannot be trained on.",
        "3 rows of",
        "tokens",
        "\u2588",
    ):
        assert text in result.output


def test_scan_accepts_trainable_data(supervised: Path, tmp_path: Path) -> None:
    good = (tmp_path / "rows.jsonl").read_text().splitlines()
    (tmp_path / "rows.jsonl").write_text("\n".join([good[0], good[2]]))
    result = titanrl("check", supervised, "--data", "--set", "data.on_overlong=drop")
    assert result.exit_code == 0, result.output
    assert "2 examples, 0 that cannot be trained on, 1 dropped as longer than [training] seq_len" in (
        result.output
    )
    assert "rows.jsonl:" not in result.output


def prompts(path: Path, *asked: str, system: str = "") -> None:
    first = [{"role": "system", "content": system}] if system else []
    chats = [[*first, {"role": "user", "content": each}] for each in asked]
    path.write_text("\n".join(json.dumps({"messages": each, "answer": "4"}) for each in chats))


def test_scan_counts_unique_held_out_prompts_and_contamination(file: Path, tmp_path: Path) -> None:
    prompts(tmp_path / "train.jsonl", "1 + 1", "1 + 2", "1 + 3", "1 + 3")
    prompts(tmp_path / "held_out.jsonl", "2 + 2", "1 + 3", "2 + 2", "never asked: 1 + 2", system="Be brief.")
    sources = [f"{{name='jsonl', path='{tmp_path}/{name}.jsonl'}}" for name in ("train", "held_out")]
    evaluation = f"evaluation={{num_prompts=3, prompts={sources[1]}}}"
    overrides = ["--set", f"prompts={sources[0]}", "--set", evaluation]
    result = titanrl("check", file, "--data", *overrides)
    assert result.exit_code == 0, result.output
    text = "[evaluation.prompts] 3 examples, 2 unique, 1 of them among the 4 of [prompts]."
    assert text in result.output
    prompts(tmp_path / "train.jsonl", "1 + 1")
    assert (
        "2 unique, none of them among the 1 of [prompts]."
        in titanrl("check", file, "--data", *overrides).output
    )


def test_scan_looks_for_held_out_rows_in_the_training_rows(supervised: Path, tmp_path: Path) -> None:
    good = (tmp_path / "rows.jsonl").read_text().splitlines()[0]
    (tmp_path / "rows.jsonl").write_text(f"{good}\n{good}")
    other = good.replace('"q"', '"another"')
    (tmp_path / "held_out.jsonl").write_text("\n".join([good, other, good.replace("yes", "no")]))
    source = f"{{name='dataset', format='messages', path='{tmp_path}/held_out.jsonl'}}"
    result = titanrl("check", supervised, "--data", "--set", f"evaluation={{num_prompts=3, data={source}}}")
    assert result.exit_code == 0, result.output
    assert "[evaluation.data] 3 examples, 2 unique, 1 of them among the 2 of [data]." in result.output


def test_histogram_has_round_edges_and_holds_every_row_once() -> None:
    assert list(histogram([3, 7, 7, 31])) == [
        (0, 4, 1),
        (5, 9, 2),
        (10, 14, 0),
        (15, 19, 0),
        (20, 24, 0),
        (25, 29, 0),
        (30, 34, 1),
    ]
    assert list(histogram([5])) == [(5, 5, 1)]
    for top in (11, 12, 99, 1000, 123_457):
        bins = list(histogram([1, top]))
        assert 1 < len(bins) <= 12
        assert sum(count for _, _, count in bins) == 2


def test_scan_reads_prompts_and_refuses_a_source_without_the_answers_that_rewards_read(
    file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "train.jsonl"
    keys = ["--set", f"prompts={{name='jsonl', path='{path}'}}", "--set", "reward=[{name='exact_match'}]"]
    path.write_text("\n".join(json.dumps({"prompt": text}) for text in ("1 + 1", "1 + 2")))
    result = titanrl("check", file, "--data", *keys)
    assert result.exit_code == 2
    assert "[prompts] 2 of 2 prompts have no reference answer, which a reward reads" in result.output
    long = "\n".join(json.dumps({"prompt": "1 + " * 200 + text, "answer": "3"}) for text in "123")
    path.write_text(long + '\n{"prompt": "1 + 1"}')
    result = titanrl("check", file, "--data", *keys)
    assert result.exit_code == 2
    assert "[prompts] prompt 0: has " in result.output
    assert "(3 rows; also [prompts] prompt 1, [prompts] prompt 2)" in result.output
    assert "[prompts] 1 of 4 prompts have no reference answer." in result.output
    path.write_text('{"prompt": "1 + 1", "answer": "2"}')
    result = titanrl("check", file, "--data", *keys)
    assert result.exit_code == 0, result.output
    assert "[prompts] 1 prompts, 0 that cannot be used; median length" in result.output


def test_scan_refuses_a_source_without_the_columns_that_a_reward_reads(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    function = "{name='function', function='tests.unit.rewards.my_rewards:per_batch'"
    source = f"prompts={{name='jsonl', path='{path}'}}"
    rows = [{"prompt": "1 + 1", "answer": "2", "info": {"level": 3}}, {"prompt": "1 + 2", "answer": "3"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    result = titanrl("check", file, "--data", "--set", source, "--set", f"reward=[{function}}}]")
    assert result.exit_code == 2
    assert "2 of 2 prompts have no column 'level', which the reward 'function' reads; name" in result.output
    nested = f"reward=[{function}, arguments={{level='info.level'}}}}]"
    result = titanrl("check", file, "--data", "--set", source, "--set", nested)
    assert result.exit_code == 0, result.output
    assert "1 of 2 prompts have no column 'info.level', which the reward 'function' reads." in result.output


@pytest.mark.slow
def test_scan_counts_reference_answers_that_a_reward_cannot_read(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    source = ["--set", f"prompts={{name='jsonl', path='{path}'}}", "--set", "reward=[{name='math_answer'}]"]
    answers = ["2", r"\frac{1}{2}", r"x \frac{", r"x \frac{", "1010_2", r"\text{Tuesday}", "]"]
    path.write_text("\n".join(json.dumps({"prompt": "q", "answer": answer}) for answer in answers))
    result = titanrl("check", file, "--data", *source)
    assert result.exit_code == 0, result.output
    text = (
        "[prompts] 3 of 7 prompts have a reference answer that the reward 'math_answer' cannot read; no "
        r"response to them is correct. 'x \\frac{': it is no formula that math-verify reads; ']': "
    )
    assert text in result.output
    path.write_text(json.dumps({"prompt": "q", "answer": "]"}))
    result = titanrl("check", file, "--data", *source)
    assert result.exit_code == 2
    assert "[prompts] 1 of 1 prompts have a reference answer that the reward 'math_answer'" in result.output
