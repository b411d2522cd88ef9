"""The model server: real HTTP, the experiment's own sampler and rewards, on the tiny model."""

from __future__ import annotations

import json
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import httpx
import pytest
import torch
import uvicorn

from tests.e2e.test_training import FILE, ROOT, file
from titanrl.cli.target import resolve_target
from titanrl.config import load
from titanrl.engine.export import export_run
from titanrl.models import tiny
from titanrl.preflight.verify import load_checked
from titanrl.protocols import Completion
from titanrl.serve import best_of_n
from titanrl.serve.engine import EngineLoop
from titanrl.serve.model import serve_model
from titanrl.training.run import train

__all__ = ["file"]

REWARDS = """
import time
from dataclasses import dataclass
from pathlib import Path
import torch
from titanrl import register

@register("reward", "served_brittle")
@dataclass(frozen=True, slots=True, kw_only=True)
class Brittle:
    \"\"\"Fail on responses shorter than eight characters.\"\"\"
    def __call__(self, batch):
        for text in batch["text", "response"]:
            if len(text) < 8:
                raise RuntimeError(f"{text!r} is short")
        return torch.tensor([-float(ord(text[0])) for text in batch["text", "response"]])

@register("reward", "served_early")
@dataclass(frozen=True, slots=True, kw_only=True)
class Early:
    \"\"\"Prefer responses whose first character is early in the alphabet.\"\"\"
    def __call__(self, batch):
        return torch.tensor([-float(ord(text[:1] or "~")) for text in batch["text", "response"]])

@register("reward", "served_slow")
@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    \"\"\"Write a file, then sleep.\"\"\"
    path: str
    def __call__(self, batch):
        Path(self.path).write_text("called")
        time.sleep(3)
        return torch.ones(len(batch))
"""


@pytest.fixture(scope="module")
def rewards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The override that imports the rewards; one file, as names are registered once."""
    path = tmp_path_factory.mktemp("rewards") / "served_rewards.py"
    path.write_text(REWARDS)
    return f"imports=['{path}']"


def post(url: str, path: str, body: Any) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    request = Request(f"{url}/v1/{path}", json.dumps(body).encode(), headers)
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=120) as reply:
            return reply.status, json.loads(reply.read())
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def complete(url: str, **body: Any) -> Any:
    status, reply = post(url, "completions", {"prompt": "say 1", **body})
    assert status == 200, reply
    return reply


def texts(reply: Any) -> list[str]:
    return [each["text"] for each in reply["choices"]]


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A context manager that serves a file from a thread of this process and yields the address."""
    servers: list[uvicorn.Server] = []

    class Recorded(uvicorn.Server):
        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            servers.append(self)

    monkeypatch.setattr(uvicorn, "Server", Recorded)

    @contextmanager
    def serving(file: Path, *overrides: str, **options: Any) -> Iterator[str]:
        messages: queue.Queue[str | BaseException] = queue.Queue()
        experiment = load_checked(file, overrides, 1)
        settings = {"best_of": None, "reward": None, "host": "127.0.0.1", "port": 0, **options}

        def work() -> None:
            try:
                serve_model(experiment, None, say=messages.put, **settings)
            except BaseException as error:
                messages.put(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        message: str | BaseException = ""
        while not str(message).startswith("serving"):
            message = messages.get(timeout=120)
            if isinstance(message, BaseException):
                raise message
        try:
            yield message.split()[-1]
        finally:
            wait_until(lambda: bool(servers))
            servers.pop().should_exit = True
            thread.join(60)
        assert messages.empty()
        assert not thread.is_alive()

    return serving


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of responses that each request asks the engine for."""
    counts: list[int] = []
    real = EngineLoop.submit

    def submit(self: EngineLoop, requests: Sequence[Any], deliver: Any) -> Any:
        counts.append(len(requests))
        return real(self, requests, deliver)

    monkeypatch.setattr(EngineLoop, "submit", submit)
    return counts


def test_best_of_n_is_the_best_of_the_n_that_are_sampled(
    file: Path, serving: Any, calls: list[int], rewards: str
) -> None:
    with serving(file, rewards, "reward=[{name='served_early', weight=2.0}]") as url:
        plain = complete(url, n=6, seed=11)
        best = complete(url, best_of=6, n=6, seed=11)
        one = complete(url, best_of=6, seed=11)
        first, again = texts(complete(url, prompt=["say 1", "say 1"], seed=11))
    assert calls == [6, 6, 6, 2]
    assert first == texts(plain)[0] != again
    assert texts(best) == sorted(texts(plain), key=lambda text: text[:1] or "~") != texts(plain)
    for choice in best["choices"]:
        value = -float(ord(choice["text"][:1] or "~"))
        assert (choice["score"], choice["rewards"]) == (2 * value, {"served_early": value})
    assert texts(one) == texts(best)[:1]
    assert one["best_of"] == best["best_of"]
    assert one["best_of"]["scored_by"] == "weighted sum"
    assert one["usage"] == best["usage"]
    assert "score" not in plain["choices"][0]


def test_concurrent_requests_get_the_same_responses_as_alone(file: Path, serving: Any) -> None:
    asked = [
        {"n": 2, "seed": 1},
        {"best_of": 3, "seed": 2},
        {"prompt": ["ask", "say"], "seed": 3, "max_tokens": 20},
        {"seed": 4, "temperature": 0.5},
        {"temperature": 0},
    ]
    with serving(file) as url, ThreadPoolExecutor(10) as pool:
        alone = [texts(complete(url, **each)) for each in asked]
        for _ in range(2):
            replies = [pool.submit(complete, url, **each) for each in asked * 2]
            assert [texts(each.result()) for each in replies] == alone * 2


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "the condition never held"
        time.sleep(0.01)


def test_reason_of_a_reward_that_fails_is_in_the_reply(file: Path, serving: Any, rewards: str) -> None:
    with serving(file, rewards, "reward=[{name='served_brittle'}]", best_of=12) as url:
        choices = complete(url, n=12, seed=5)["choices"]
    scored = [each for each in choices if each["score"] is not None]
    failed = choices[len(scored) :]
    assert len(scored) > 1
    assert failed
    scores = [each["score"] for each in scored]
    assert scores == [-float(ord(each["text"][0])) for each in scored] == sorted(scores, reverse=True)
    for each in failed:
        reason = f"RuntimeError: {each['text']!r} is short"
        assert (each["score"], each["rewards"], each["failures"]) == (None, {}, {"served_brittle": reason})


def test_reward_model_selects_without_a_reference_answer(
    file: Path, serving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForSequenceClassification

    seen: list[list[int]] = []
    real = best_of_n.collate_rollouts

    def collate(rows: Sequence[Any], found: Sequence[Completion], **given: Any) -> Any:
        # The model reads everything before the last token of a response.
        seen.extend([*row.prompt_ids, *each.ids[:-1]] for row, each in zip(rows, found, strict=True))
        return real(rows, found, **given)

    monkeypatch.setattr(best_of_n, "collate_rollouts", collate)
    folder = tiny.create(tmp_path / "judge", head="value", scale=0.3)
    both = f"reward=[{{name='reward_model', path='{folder}'}}, {{name='exact_match', weight=0.5}}]"
    with serving(file, both, reward="reward_model") as url:
        choices = complete(url, best_of=5, n=5, seed=2)["choices"]
    with serving(file, both) as url:
        free = complete(url, best_of=2)
        raw = complete(url, best_of=2, answer="4")["choices"][0]["rewards"]
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    wanted = sorted((model(torch.tensor([ids])).logits.item() for ids in seen[:5]), reverse=True)
    assert [each["score"] for each in choices] == pytest.approx(wanted, abs=1e-4)
    assert wanted[0] - wanted[-1] > 0.1
    assert free["best_of"]["scored_by"] == "weighted sum of reward_model"
    assert free["choices"][0]["rewards"].keys() == {"reward_model"}
    assert raw.keys() == {"reward_model", "exact_match"}


def test_openais_client_is_served(file: Path, serving: Any) -> None:
    openai = pytest.importorskip("openai")
    with serving(file, best_of=3) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
        (model,) = client.models.list().data
        text = client.completions.create(model=model.id, prompt="say 1", seed=3, max_tokens=4, stop=["e"])
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1"}]
        chat = client.chat.completions.create(
            model=model.id, messages=messages, max_completion_tokens=3, extra_body={"best_of": 2}
        )
        assert client.models.retrieve(model.id) == model
        with pytest.raises(openai.BadRequestError, match="echo is not supported"):
            client.completions.create(model=model.id, prompt="say 1", echo=True)
        plain = {"model": model.id, "messages": messages, "seed": 5, "extra_body": {"best_of": 1}}
        whole = client.chat.completions.create(**plain, logprobs=True, top_logprobs=1)
        with client.chat.completions.create(**plain, stream=True) as stream:
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert whole.choices[0].logprobs.content[0].logprob <= 0
    assert "e" not in text.choices[0].text
    assert text.usage.completion_tokens <= 12
    assert text.choices[0].score == max(text.best_of["scores"][0])
    assert len(text.best_of["scores"][0]) == 3
    assert chat.choices[0].message.role == "assistant"
    assert len(chat.best_of["scores"][0]) == 2


def test_default_ranking_reward_is_best_of_reward_of_the_evaluation(file: Path, serving: Any) -> None:
    settings = ("samples_per_prompt=2", "temperature=1.0", "best_of_reward='shown'")
    both = "reward=[{name='repetition', n=1}, {name='repetition', label='shown', n=2, weight=0.0}]"
    with serving(file, both, *(f"evaluation.{each}" for each in settings)) as url:
        reply = complete(url, best_of=2)
    assert reply["best_of"]["scored_by"] == "shown"
    assert reply["choices"][0]["rewards"].keys() == {"shown"}


@contextmanager
def command(*arguments: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start `titanrl serve` as a user does and yield the process and its address."""
    line = [sys.executable, "-m", "titanrl", "serve", *map(str, arguments), "--port", "0"]
    with subprocess.Popen(
        line,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # The process that starts the tests may ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout is not None
        try:
            shown: list[str] = []
            for shown_line in process.stdout:
                shown.append(shown_line)
                if match := re.match(r"serving .* at (http://\S+)$", shown_line):
                    break
            else:
                raise AssertionError("".join(shown))
            yield process, match[1]
        finally:
            process.kill()


def test_run_is_served_from_its_newest_checkpoint_and_ctrl_c_drains_requests(
    file: Path, tmp_path: Path, rewards: str
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = train(load(file, ["loop.steps=2", "evaluation="]))
    slow = f"reward=[{{name='served_slow', path='{tmp_path}/called'}}]"
    # A run is served although its [prompts] are gone and several ranks trained it.
    (tmp_path / "prompts.jsonl").unlink()
    sets = [rewards, slow, "parallelism.data_parallel_replicate_degree=2"]
    with command(run, *(f"--set={each}" for each in sets)) as (process, url), ThreadPoolExecutor(2) as pool:
        greedy = complete(url, temperature=0, max_tokens=12)
        assert greedy["model"] == str(run)
        asked = pool.submit(complete, url, best_of=2)
        body = {"prompt": "say 1", "best_of": 2, "stream": True}
        streamed = pool.submit(httpx.post, f"{url}/v1/completions", json=body, timeout=120, trust_env=False)
        wait_until((tmp_path / "called").exists)
        process.send_signal(signal.SIGINT)
        assert streamed.result().text.endswith("data: [DONE]\n\n")
        assert asked.result()["choices"][0]["score"] == 1.0
        assert process.wait(120) == 0
    folder = export_run(run, tmp_path / "exported")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("say 1", return_tensors="pt")
    wanted = model.generate(**ids, do_sample=False, max_new_tokens=12)[0, ids["input_ids"].shape[1] :]
    assert texts(greedy) == [tokenizer.decode(wanted, skip_special_tokens=True)]


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_vllm_and_torch_serve_the_same_responses(tmp_path: Path) -> None:
    """The file has no [parallelism], and --model names another model."""
    pytest.importorskip("vllm")
    shape = {
        "hidden": 128,
        "heads": 2,
        "kv_heads": 1,
        "scale": 0.15,
    }  # a shape that vLLM's attention on a CPU supports
    tiny.create(tmp_path / "model", **shape)
    other = tiny.create(tmp_path / "other", seed=5, **shape)
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": "say 1"}))
    file = tmp_path / "served.toml"
    file.write_text(FILE.format(root=ROOT, folder=tmp_path))
    assert "parallelism" not in file.read_text()
    replies = {}
    for name in ("torch", "vllm"):
        # A sampler with another name does not inherit keys.
        sets = [f"--set=sampler.name={name}", "--set=sampler.max_response_tokens=8"]
        options = [*sets, "--best-of", 4, "--reward", "repetition"]
        with command(file, "--model", other, *options) as (process, url):
            with ThreadPoolExecutor(4) as pool:
                asked = [
                    {"temperature": 0, "best_of": 1, "max_tokens": 12},
                    {"temperature": 0, "best_of": 1, "prompt": "ask"},
                    {"seed": 3, "n": 4},
                    {"seed": 4, "stop": "e"},
                ]
                found = [*pool.map(lambda each: complete(url, **each), asked)]
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
        assert [each["model"] for each in found] == [str(other)] * 4
        assert found[2]["best_of"]["scored_by"] == "repetition"
        scores = [each["score"] for each in found[2]["choices"]]
        assert scores == sorted(scores, reverse=True)
        assert found[2]["best_of"]["scores"] == [scores]
        assert "e" not in texts(found[3])[0]
        replies[name] = found
    for number in (0, 1):
        assert texts(replies["torch"][number]) == texts(replies["vllm"][number])


def test_target_is_a_file_a_run_or_another_model(file: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "experiment.toml").write_text(file.read_text())
    trained = f'model.path="{tmp_path}/model"'
    assert resolve_target(file, None, ["a=1"])[:3] == (file, ["a=1"], None)
    assert resolve_target(run, None, None)[:3] == (run / "experiment.toml", [trained], run)
    assert resolve_target(file, run, ["a=1"])[:3] == (file, [trained, "a=1"], run)
    assert resolve_target(run, tmp_path / "m", [])[:3] == (
        run / "experiment.toml",
        [f'model.path="{tmp_path}/m"'],
        None,
    )
