"""A run whose policy calls tools, with the functions of docs/tools.md, and the page's other examples."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

import titanrl
from titanrl.models import tiny
from titanrl.preflight.verify import preflight
from titanrl.protocols import RolloutRequest
from titanrl.protocols.tools import ToolCall
from titanrl.registry.decode import build
from titanrl.runtime.tools.table import ToolTable
from titanrl.runtime.tools.toolbox import Toolbox

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tools.md").read_text("utf-8")
FILE = """
base = "{root}/experiments/algorithms/grpo.toml"
[run]
folder = "{folder}/runs"
[model]
path = "{folder}/model"
[prompts]
name = "tasks"
prompt = "Take the sticks."
size = 4
[sampler]
name = "scripted"
max_response_tokens = 96
answers = [
  '<tool_call>{{"name": "take", "arguments": {{"count": 1}}}}</tool_call>',
  '<tool_call>{{"name": "calculator", "arguments": {{"expression": "1/0"}}}}</tool_call>',
  '<tool_call>{{"name": "search", "arguments": {{"query": "tea"}}}}</tool_call><tool_call>{{</tool_call>',
  'No call.',
]
[environment]
name = "tools"
max_turns = 3
max_calls = 5
[[environment.tool]]
name = "calculator"
[[environment.tool]]
name = "function"
function = "tools_of_the_page:search"
[[environment.tool]]
name = "toolset"
factory = "tools_of_the_page:ThreeSticks"
[[reward]]
name = "environment"
[loop]
steps = 1
prompts_per_step = 1
samples_per_prompt = 4
[training]
seq_len = 4096
mixed_precision_param = "float32"
[report]
tensorboard = false
progress = false
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the module of the page's Python examples."""
    code = "\n\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    three = (
        "\n\nclass ThreeSticks(Sticks):\n    def reset(self, **columns):\n        return super().reset(3)\n"
    )
    (tmp_path / "tools_of_the_page.py").write_text(code + three)
    monkeypatch.syspath_prepend(tmp_path)
    return "tools_of_the_page"


def create_model(folder: Path) -> None:
    """Creates the tiny model with a context that holds the schemas of tools, a token per character or so."""
    tiny.create(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))


def test_a_run_trains_on_rollouts_with_tool_calls(tmp_path: Path, module: str) -> None:
    create_model(tmp_path / "model")
    file = tmp_path / "sticks.toml"
    file.write_text(FILE.format(root=ROOT, folder=tmp_path))
    titanrl.train(titanrl.load(file))
    (folder,) = (tmp_path / "runs").iterdir()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    metrics = {key: value for line in lines for key, value in line.items()}
    # Of four samples, three call in each of three turns: one call, one that fails, and two of which one is
    # no JSON, until no calls are left.
    assert metrics["environment/turns"] == (3 + 3 + 3 + 1) / 4
    assert metrics["environment/calls"] == (3 + 3 + 6 + 0) / 4
    assert metrics["environment/calls_ok"] == (3 + 3) / 4
    assert metrics["environment/calls_error"] == 3 / 4
    assert metrics["environment/calls_malformed"] == 2 / 4
    assert metrics["environment/calls_over_limit"] == 1 / 4
    assert metrics["environment/unanswered"] == 3 / 4
    assert metrics["environment/failed_fraction"] == 0
    assert metrics["reward/environment"] == 1 / 4


def test_functions_of_the_page_can_be_called(module: str) -> None:
    tables = [
        ToolTable(component=build("tool", {"name": "function", "function": f"{module}:search"})),
        ToolTable(component=build("tool", {"name": "toolset", "factory": f"{module}:Sticks"})),
    ]
    box = Toolbox(tables)

    async def play() -> list[str]:
        session = await box.open(RolloutRequest([1], 0, 0, columns={"sticks": 5}))
        calls = [ToolCall("search", {"query": "tea", "order": "date"}), ToolCall("take", {"count": 2})]
        texts = [*session.observations, *(result.content for result in await session.call(calls))]
        return [*texts, str(await session.reward())]

    assert asyncio.run(play()) == ["There are 5 sticks.", '["result for tea"]', "3 left", "0.0"]


def test_file_of_the_page_is_complete(tmp_path: Path, module: str) -> None:
    create_model(tmp_path / "model")
    (tables,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    head = FILE.format(root=ROOT, folder=tmp_path).partition("[environment]")[0]
    file = tmp_path / "page.toml"
    file.write_text(
        head
        + tables.replace("my_tools:", f"{module}:")
        + "[loop]\nsteps = 1\nprompts_per_step = 2\n[training]\nseq_len = 512\n"
    )
    assert [str(each) for each in preflight(titanrl.load(file))] == []
