"""Requests and replies of the model server: which requests are refused and why, and what replies contain."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from titanrl import build
from titanrl.config.tables import Reward
from titanrl.errors import ConfigError, TrainingError
from titanrl.serve.best_of_n import GenerationRequest, GenerationResult, RankedResponse
from titanrl.serve.http import Batcher, address, bind_socket
from titanrl.serve.model import describe_server, model_app
from titanrl.serve.openai import ServerInfo


class Model:
    """A model whose response i has the text ai and the score -i."""

    def __init__(self) -> None:
        self.calls: list[list[GenerationRequest]] = []

    def __call__(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult | Exception]:
        self.calls.append(list(requests))
        return [self._respond(request) for request in requests]

    def _respond(self, request: GenerationRequest) -> GenerationResult | Exception:
        if request.prompt == "bad":
            return ValueError("prompt is bad")
        if request.prompt == "gone":
            return TrainingError("the rewards failed: no server")
        if request.prompt == "crash":
            raise MemoryError("out of memory")
        numbers = range(request.num_responses)
        if request.is_ranked:
            return GenerationResult(
                3, [RankedResponse(f"a{i}", 2, i % 2, -float(i), {"x": -float(i)}, {}) for i in numbers]
            )
        return GenerationResult(3, [RankedResponse(f"a{i}", 2, i % 2) for i in numbers])


@pytest.fixture
def model() -> Model:
    return Model()


def client(model: Model, **options: Any) -> TestClient:
    app = model_app(ServerInfo("tiny", **options), Batcher(model).start())
    return TestClient(app, raise_server_exceptions=False)


COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def test_completion_has_openais_form(model: Model) -> None:
    body = client(model).post(COMPLETIONS, json={"prompt": "say", "n": 2, "seed": 4, "stop": "x"}).json()
    assert body.pop("id").startswith("cmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "text_completion",
        "model": "tiny",
        "choices": [
            {"index": 0, "text": "a0", "logprobs": None, "finish_reason": "stop"},
            {"index": 1, "text": "a1", "logprobs": None, "finish_reason": "length"},
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    }
    assert model.calls == [[GenerationRequest("say", num_responses=2, seed=4, stop=("x",))]]


def test_chat_has_openais_form_and_best_of_n_its_scores(model: Model) -> None:
    chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "say"}]}], "best_of": 3}
    sent = chat | {"answer": {"tests": [1]}, "max_completion_tokens": 5, "temperature": 0.5, "model": "tiny"}
    body = client(model, scored_by="x", reference_readers=("x",)).post(CHAT, json=sent).json()
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "a0"},
            "logprobs": None,
            "finish_reason": "stop",
            "score": 0.0,
            "rewards": {"x": 0.0},
            "failures": {},
        }
    ]
    assert body["best_of"] == {"scored_by": "x", "scores": [[0.0, -1.0, -2.0]]}
    assert body["usage"]["completion_tokens"] == 6
    ((request,),) = model.calls
    expected = GenerationRequest(
        ({"role": "user", "content": "say"},),
        '{"tests": [1]}',
        num_responses=3,
        is_ranked=True,
        temperature=0.5,
        max_tokens=5,
        seed=request.seed,
    )
    assert request == expected


def test_requests_without_a_seed_get_different_ones(model: Model) -> None:
    for _ in range(2):
        assert client(model).post(COMPLETIONS, json={"prompt": "say"}).status_code == 200
    assert model.calls[0][0].seed != model.calls[1][0].seed


@pytest.mark.parametrize(("n", "num"), [(1, 4), (4, 4), (6, 6)])
def test_best_of_of_the_server_is_the_default_of_requests(model: Model, n: int, num: int) -> None:
    body = client(model, best_of=4, scored_by="x").post(COMPLETIONS, json={"prompt": "say", "n": n}).json()
    assert (len(body["choices"]), len(body["best_of"]["scores"][0])) == (n, num)


def test_several_prompts_get_their_own_responses(model: Model) -> None:
    app = client(model, scored_by="x", reference_readers=("x",))
    sent = {"prompt": ["say", [1, 2]], "answer": ["1", {"b": 2}], "best_of": 2, "seed": 1}
    body = app.post(COMPLETIONS, json=sent).json()
    assert [each["index"] for each in body["choices"]] == [0, 1]
    requests = [(each.prompt, each.reference, each.seed) for each in model.calls[0]]
    assert requests == [("say", "1", 1), ((1, 2), '{"b": 2}', 1 + 2**32)]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (COMPLETIONS, {}, "prompt is missing."),
        (CHAT, {}, "messages is missing."),
        (COMPLETIONS, [], "the body must be a JSON object with Content-Type: application/json, got list."),
        (COMPLETIONS, {"prompt": 5}, "prompt must be a text, token ids, or 1 to 1024 of these, got 5."),
        (COMPLETIONS, {"prompt": []}, "prompt must be a text, token ids, or 1 to 1024 of these, got []."),
        (COMPLETIONS, {"prompt": [-1]}, "prompt must be a text, token ids, or 1 to 1024 of these, got [-1]."),
        (CHAT, {"messages": "hi"}, "messages must be a text or a list of messages, not empty, got 'hi'."),
        (CHAT, {"messages": [{"role": "boss", "content": "a"}]}, "messages[0].role must be one of system"),
        (COMPLETIONS, {"prompt": "a", "n": 0}, "n: Input should be greater than or equal to 1, got 0."),
        (COMPLETIONS, {"prompt": "a", "n": "2"}, "n: Input should be a valid integer, got '2'."),
        (COMPLETIONS, {"prompt": "a", "n": 3, "best_of": 2}, "best_of must be >= n = 3, got 2."),
        (COMPLETIONS, {"prompt": "a", "best_fo": 2}, "unknown key 'best_fo'; did you mean 'best_of'? keys:"),
        (COMPLETIONS, {"prompt": "a", "stream": True}, "stream is not supported, got true; leave it out."),
        (COMPLETIONS, {"prompt": "a", "logprobs": 2}, "logprobs is not supported, got 2; leave it out."),
        (
            COMPLETIONS,
            {"prompt": "a", "temperature": -1},
            "temperature: Input should be greater than or equal",
        ),
        (COMPLETIONS, {"prompt": "a", "temperature": 0, "n": 2}, "temperature must be > 0 for 2 responses"),
        (COMPLETIONS, {"prompt": "a", "top_p": 0.5}, "top_p must be the sampler's, 1.0, got 0.5;"),
        (COMPLETIONS, {"prompt": "a", "stop": ""}, "stop must not contain an empty text"),
        (COMPLETIONS, {"prompt": "a", "seed": 2**32}, "seed: Input should be less than 4294967296"),
        (COMPLETIONS, {"prompt": "a", "answer": "b"}, "answer is only used with best_of"),
        (
            COMPLETIONS,
            {"prompt": "a", "best_of": 2},
            "answer is missing: the reference answer, which the reward",
        ),
        (
            COMPLETIONS,
            {"prompt": ["a", "b"], "best_of": 2, "answer": "c"},
            "answer must be a list with one reference answer for",
        ),
        (COMPLETIONS, {"prompt": "bad"}, "prompt is bad"),
    ],
)
def test_invalid_request_gets_400_and_the_reason(model: Model, path: str, body: Any, message: str) -> None:
    reply = client(model, scored_by="x", reference_readers=("x",)).post(path, json=body)
    error = reply.json()["error"]
    assert error["message"].startswith(message), error
    assert (reply.status_code, error["type"]) == (400, "invalid_request_error")


def test_invalid_json_is_refused(model: Model) -> None:
    app = client(model)
    reply = app.post(COMPLETIONS, content="{", headers={"Content-Type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["message"][:24]) == (400, "the body is not JSON: Ex")
    assert "Content-Type: application/json, got bytes" in app.post(COMPLETIONS, content="{}").text


def test_best_of_without_rewards_is_refused(model: Model) -> None:
    reply = client(model).post(COMPLETIONS, json={"prompt": "a", "best_of": 2})
    assert (reply.status_code, "best_of needs a [[reward]]" in reply.text) == (400, True)


def test_unknown_model_is_not_found(model: Model) -> None:
    reply = client(model).post(COMPLETIONS, json={"prompt": "a", "model": "big"})
    assert (reply.status_code, reply.json()["error"]["message"]) == (
        404,
        "model must be 'tiny', got 'big'; leave it out.",
    )


def test_parameters_without_effect_are_accepted(model: Model) -> None:
    neutral = {"stream": False, "logprobs": None, "presence_penalty": 0.0, "echo": False, "user": "me"}
    sent = {"prompt": "a", "top_p": 1.0, **neutral}
    assert client(model).post(COMPLETIONS, json=sent).status_code == 200


def test_model_or_reward_error_is_reported_and_the_server_continues(model: Model) -> None:
    app = client(model)
    for prompt, message in (
        ("gone", "the rewards failed: no server"),
        ("crash", "MemoryError: out of memory"),
    ):
        reply = app.post(COMPLETIONS, json={"prompt": prompt})
        error = reply.json()["error"]
        assert (reply.status_code, error["type"], error["message"]) == (500, "server_error", message)
    assert app.post(COMPLETIONS, json={"prompt": "a"}).status_code == 200


def test_models_and_health_endpoints_respond(model: Model) -> None:
    app = client(model)
    assert app.get("/health").json() == {"status": "ok"}
    (listed,) = app.get("/v1/models").json()["data"]
    assert (listed["id"], listed["object"]) == ("tiny", "model")


def test_batcher_processes_waiting_requests_together_before_closing() -> None:
    calls: list[list[int]] = []
    first, go = threading.Event(), threading.Event()

    def double(rows: list[int]) -> list[int]:
        calls.append(rows)
        first.set()
        go.wait(10)
        return [2 * row for row in rows]

    batcher = Batcher(double)
    thread = threading.Thread(target=batcher.run)
    thread.start()
    futures = [batcher.submit([1])]
    assert first.wait(10)
    futures += [batcher.submit([2, 3]), batcher.submit([]), batcher.submit([4])]
    batcher.close()
    go.set()
    thread.join(10)
    assert [each.result(0) for each in futures] == [[2], [4, 6], [], [8]]
    assert calls == [[1], [2, 3, 4]]


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    with closing(bind_socket("127.0.0.1", 0)) as bound:
        yield bound


def test_address_in_use_is_refused_before_loading(bound: socket.socket) -> None:
    port = int(address(bound).removeprefix("http://127.0.0.1:"))
    bound.listen()
    with pytest.raises(ConfigError, match=f"--host 127.0.0.1 --port {port} is not available: Address al"):
        bind_socket("127.0.0.1", port)


def experiment(*rewards: Reward, **sampler: Any) -> Any:
    return SimpleNamespace(sampler=SimpleNamespace(**sampler), reward=rewards)


def test_server_info_lists_ranking_rewards_and_those_with_a_reference() -> None:
    names = {"right": "exact_match", "form": "think_tags"}
    rewards = [Reward(component=build("reward", {"name": n}), label=label) for label, n in names.items()]
    judge = {"name": "llm_judge", "endpoint": "http://a", "model": "b"}
    rewards.append(Reward(component=build("reward", judge), label="judge", weight=0.0))
    served = experiment(*rewards, top_p=0.9)
    assert describe_server(served, "m", 4, None) == ServerInfo("m", 4, "weighted sum", ("right",), 0.9)
    assert describe_server(served, "m", 4, "form") == ServerInfo("m", 4, "form", (), 0.9)
    assert describe_server(served, "m", None, "judge") == ServerInfo("m", None, "judge", (), 0.9)
    for without in (experiment(), experiment(rewards[-1])):
        assert describe_server(without, "m", None, None) == ServerInfo("m")
        with pytest.raises(
            ConfigError, match=r"--best-of 4 needs a \[\[reward\]\] with a weight other than 0"
        ):
            describe_server(without, "m", 4, None)
    with pytest.raises(ConfigError, match=r"--reward must be .*'x'; labels: none"):
        describe_server(experiment(), "m", 4, "x")
    with pytest.raises(ConfigError, match=r"\[sampler\] is missing"):
        describe_server(SimpleNamespace(sampler=None, reward=()), "m", None, None)  # type: ignore[arg-type]
