"""A reward model as a reward: in this process, from a server, and what is refused."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn
from typer.testing import CliRunner

import titanrl
from tests.unit.engine.conftest import make_batch
from tests.unit.rewards.servers import answering
from titanrl.cli import app
from titanrl.components.rewards.reward_model.scorer import Scorer, facts_of
from titanrl.config import dumps, load
from titanrl.config.engine_tables import Training
from titanrl.engine import Engine, EngineConfig
from titanrl.errors import ConfigError, TrainingError
from titanrl.models import tiny
from titanrl.ops.sequence import at_last_loss_token
from titanrl.preflight.memory import estimate_rank_memory
from titanrl.preflight.verify import preflight
from titanrl.serve.http import Batcher
from titanrl.serve.reward_model import reward_app

EXPERIMENT = Path(__file__).parents[3] / "experiments" / "tiny_grpo.toml"
NO_TOKEN = "the row has no loss tokens"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny.create(tmp_path_factory.mktemp("reward") / "model", head="value", scale=0.2)


def reward(**keys: Any) -> Any:
    return titanrl.build("reward", {"name": "reward_model", **keys})


@contextmanager
def serving(folder: Path, score: Callable[[list[list[int]]], list[list[float]]]) -> Iterator[str]:
    """Yields the address of the real server, on a free port, in a thread."""
    server = uvicorn.Server(uvicorn.Config(reward_app(facts_of(folder), score), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(10)


def test_scores_are_the_engines_values_at_the_last_response_token(folder: Path) -> None:
    """One row has no loss token and fails."""
    batch = make_batch()
    training = Training(seq_len=48, mixed_precision_param="float32")
    engine = Engine(EngineConfig(model=str(folder), head="value", training=training))
    value = at_last_loss_token(engine.score(batch, ("value",))["value"], batch["loss_mask"])
    wanted = [
        NO_TOKEN if row == 5 else pytest.approx((score - 0.25) / 2, abs=1e-5)
        for row, score in enumerate(value.tolist())
    ]
    assert value.std() > 0.3
    for batch_tokens in (1, 70, None):
        keys = {} if batch_tokens is None else {"batch_tokens": batch_tokens}
        assert reward(path=str(folder), mean=0.25, std=2.0, **keys).scores(batch) == wanted


def test_batches_group_rows_by_length_within_the_token_budget(folder: Path) -> None:
    scorer, seen = Scorer(str(folder), batch_tokens=12), []

    def record(rows: Sequence[Sequence[int]], *_: object) -> list[list[float]]:
        seen.append([len(row) for row in rows])
        return [[float(len(row))] for row in rows]

    scorer._score = record  # type: ignore[method-assign]
    lengths = [3, 6, 4, 20, 3, 1]
    assert scorer([[7] * length for length in lengths]) == [[float(length)] for length in lengths]
    assert seen == [[20], [6, 4], [3, 3, 1]]


def test_offloaded_reward_model_gives_the_same_scores(folder: Path) -> None:
    """Also after a call that fails: on the device ``meta`` no score can be read."""
    batch = make_batch()
    wanted = reward(path=str(folder)).scores(batch)
    assert reward(path=str(folder), offload=True).scores(batch) == wanted
    scorer, rows = Scorer(str(folder), offload=True), [[5, 6, 7], [8]]
    first = scorer(rows)
    scorer._device = torch.device("meta")
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        scorer(rows)
    tensors = [*scorer._model.parameters(), *scorer._model.buffers()]
    assert {each.device.type for each in tensors} == {"cpu"}
    scorer._device = torch.device("cpu")
    assert scorer(rows) == first


def test_memory_of_a_reward_model_is_that_of_its_weights(folder: Path) -> None:
    numbers = sum(each.numel() for each in Scorer(str(folder))._model.parameters())
    tiny.create(folder.with_name("policy"))
    for offload in (False, True):
        table = (
            f"[{{name='reward_model', path='{folder}', dtype='bfloat16', offload={str(offload).lower()}}}]"
        )
        changes = [f"reward={table}", f"model.path={folder.with_name('policy')}"]
        found = {each.name: each for each in estimate_rank_memory(load(EXPERIMENT, changes), 1)}
        assert found["reward_model: weights"] == ("reward_model: weights", 2 * numbers, offload)
        assert found["activations"].size > 2 * numbers


@pytest.mark.slow
def test_server_gives_the_same_scores_in_order_and_refuses_invalid_requests(folder: Path) -> None:
    batch, local = make_batch(), reward(path=str(folder))
    wanted = [score if score == NO_TOKEN else pytest.approx(score, abs=1e-6) for score in local.scores(batch)]
    assert wanted.count(NO_TOKEN) == 1
    with serving(folder, Scorer(str(folder))) as url:
        assert reward(url=url).scores(batch) == wanted
        assert reward(url=url).facts() == facts_of(folder)
        batch["input_ids"][0, 0] = 5000
        with pytest.raises(TrainingError, match=r"row 0 must have ids < 96, got 5000"):
            reward(url=url).scores(batch)


def test_server_batches_waiting_requests_and_reports_a_failure_to_each() -> None:
    calls: list[int] = []
    first, go = threading.Event(), threading.Event()

    def score(rows: list[list[int]]) -> list[list[float]]:
        calls.append(len(rows))
        first.set()
        go.wait(5)
        if rows[0] == [0]:
            raise RuntimeError("out of memory")
        return [[float(sum(row))] for row in rows]

    batcher, results = Batcher(score).start(), {}

    def ask(name: int, rows: list[list[int]]) -> None:
        try:
            results[name] = batcher(rows)
        except RuntimeError as error:
            results[name] = error

    threads = [threading.Thread(target=ask, args=(0, [[0], [1]]))]
    threads[0].start()
    first.wait(5)
    threads += [threading.Thread(target=ask, args=(name, [[name], [name, 9]])) for name in (1, 2)]
    for thread in threads[1:]:
        thread.start()
    while batcher._waiting.qsize() < 2:
        time.sleep(0.001)
    go.set()
    for thread in threads:
        thread.join(5)
    assert calls == [2, 4]
    assert isinstance(results[0], RuntimeError)
    assert (results[1], results[2]) == ([[1.0], [10.0]], [[2.0], [11.0]])


def test_model_of_several_heads_gives_their_weighted_sum() -> None:
    heads = ("helpful", "brief")
    reply = {"heads": heads, "scores": [[1.0, 10.0], [2.0, 0.0]]}
    batch = make_batch()[:2]
    with answering(lambda *_: (200, reply)) as url:
        chosen = reward(url=url, heads={"brief": 0.1, "helpful": 3.0})
        assert chosen.scores(batch) == pytest.approx([4.0, 6.0])
        for wrong in ({}, {"helpful": 1.0}, {"helpful": 1.0, "brief": 1.0, "kind": 1.0}):
            with pytest.raises(
                titanrl.ConfigError, match=r"heads must give a weight to each head of .*helpful, brief.*, got"
            ):
                reward(url=url, heads=wrong).scores(batch)


@pytest.mark.slow
def test_malformed_reply_fails_the_rows_and_not_the_run() -> None:
    replies = (
        {},
        {"heads": ["a"], "scores": [[1.0]]},
        [1.0],
        {"heads": ["a"], "scores": [[1.0], ["x"]]},
        "<html>",
    )
    batch = make_batch()[:2]
    for reply in replies:
        with answering(lambda *_, reply=reply: (200, reply)) as url:
            first, second = reward(url=url).scores(batch)
            problem = "did not return JSON" if reply == "<html>" else "is not a reward server of this version"
            assert first == second
            assert problem in str(first)
            assert reward(url=url)(batch).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "path or url must be given, got neither"),
        ({"path": "a", "url": "http://b"}, "path or url must be given, got both"),
        ({"url": "node:1"}, "url must begin with http"),
        ({"url": "http://b", "batch_tokens": 5}, "batch_tokens is not used with url, got 5"),
        ({"path": "a", "timeout_seconds": 5.0}, "timeout_seconds is not used with path"),
        ({"path": "a", "std": 0.0}, r"std must be in \(0, inf\)"),
    ],
)
def test_wrong_table_is_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(titanrl.ConfigError, match=message):
        reward(**table)


def test_check_reports_an_incompatible_reward_model(folder: Path, tmp_path: Path) -> None:
    policy = tiny.create(tmp_path / "policy")
    other = tiny.create(tmp_path / "other", head="value", characters="abc", context=16)
    for path, messages in (
        (folder, []),
        (policy, ["must hold a ...ForSequenceClassification, got LlamaForCausalLM"]),
        (other, ["must have a context of [training] seq_len = ", "must have the model's tokenizer"]),
        (tmp_path, ["has no config.json"]),
    ):
        table = f"reward=[{{name='reward_model', path='{path}'}}]"
        experiment = load(EXPERIMENT, [f"model.path={policy}", table])
        problems = [str(problem) for problem in preflight(experiment)]
        assert len(problems) == len(messages), problems
        for problem, message in zip(problems, messages, strict=True):
            assert problem.startswith("[reward.0] path")
            assert message in problem
    resolved = tmp_path / "resolved.toml"
    resolved.write_text(dumps(experiment))
    assert load(resolved) == experiment


def test_serve_reward_serves_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr(
        "titanrl.serve.reward_model.serve", lambda *given, **keys: served.append((given, keys))
    )
    options = ["--port", "8123", "--dtype", "bfloat16"]
    result = CliRunner().invoke(app, ["serve-reward", str(folder), *options])
    assert result.exit_code == 0, result.output
    keys = {"host": "127.0.0.1", "port": 8123, "dtype": "bfloat16", "batch_tokens": 8192}
    assert served == [((str(folder),), keys)]
    assert f"serving {folder} at http://127.0.0.1:8123" in result.output


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("config.json", "{", "config.json cannot be read: Expecting"),
        ("config.json", "[]", "config.json cannot be read: 'list' object has no attribute 'get'"),
        (
            "config.json",
            '{"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "x"}}',
            "config.json cannot be read: 'max_position_embeddings' is missing; write the folder again",
        ),
        ("tokenizer.json", "{", "tokenizer.json cannot be read"),
    ],
)
def test_invalid_reward_model_folder_is_refused(
    folder: Path, tmp_path: Path, file: str, text: str, message: str
) -> None:
    broken = Path(shutil.copytree(folder, tmp_path / "broken"))
    (broken / file).write_text(text)
    with pytest.raises(ConfigError) as caught:
        facts_of(broken)
    assert message in str(caught.value)
    assert str(broken) in str(caught.value)
