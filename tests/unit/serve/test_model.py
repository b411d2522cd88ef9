"""Requests and replies of the model server: which requests are refused and why, and what replies contain."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from starlette.testclient import TestClient

from titanrl import build
from titanrl.components.samplers.torch import Torch
from titanrl.components.samplers.vllm import VLLM
from titanrl.config.tables import Reward
from titanrl.errors import ConfigError, TrainingError
from titanrl.serve.best_of_n import GenerationRequest, GenerationResult, RankedResponse, TokenLogprob
from titanrl.serve.engine import Overloaded
from titanrl.serve.http import Batcher, address, bind_socket
from titanrl.serve.model import describe_server, model_app
from titanrl.serve.openai import NEUTRAL, ServerInfo
from titanrl.serve.service import Delta


class Model:
    """A service whose response i has the text ai and the score -i."""

    def __init__(self) -> None:
        self.calls: list[list[GenerationRequest]] = []
        self.closed = 0

    async def call(self, function: Callable[[], Any]) -> Any:
        return function()

    async def open(self, requests: Sequence[GenerationRequest]) -> Any:
        self.calls.append(list(requests))
        if any(request.prompt == "bad" for request in requests):
            raise ValueError("prompt is bad")
        if any(request.prompt == "full" for request in requests):
            raise Overloaded("9 responses wait; try again later.")
        return Generated(self, requests)


class Generated:
    """The responses to one request."""

    def __init__(self, model: Model, requests: Sequence[GenerationRequest]) -> None:
        self._model, self._requests = model, requests

    async def results(self) -> list[GenerationResult]:
        return [self._respond(request) for request in self._requests]

    async def deltas(self) -> AsyncIterator[Delta]:
        for prompt, result in enumerate(await self.results()):
            for sample, response in enumerate(result.ranked):
                first, second = response.text[:1], response.text[1:]
                yield Delta(prompt, response._replace(text=first, tokens=response.tokens[:1]), False, sample)
                yield Delta(prompt, response._replace(text=second, tokens=response.tokens[1:]), True, sample)

    def close(self) -> None:
        self._model.closed += 1

    def _respond(self, request: GenerationRequest) -> GenerationResult:
        if request.prompt == "gone":
            raise TrainingError("the rewards failed: no server")
        if request.prompt == "crash":
            raise MemoryError("out of memory")
        numbers = range(request.num_responses)
        responses = [RankedResponse(f"a{i}", 2, i % 2) for i in numbers]
        if request.num_top is not None:
            tokens = [TokenLogprob("a", -0.5, (("a", -0.5), ("é", -1.0))), TokenLogprob("\ufffd", -2.0)]
            responses = [each._replace(tokens=tuple(tokens)) for each in responses]
        if request.is_ranked:
            responses = [
                each._replace(score=-float(i), rewards={"x": -float(i)}) for i, each in enumerate(responses)
            ]
        return GenerationResult(3, responses)


@pytest.fixture
def model() -> Model:
    return Model()


def client(model: Model, api_key: str | None = None, **options: Any) -> TestClient:
    app = model_app(ServerInfo("runs/tiny", **options), model, api_key)
    return TestClient(app, raise_server_exceptions=False)


def ranking(**more: Any) -> dict[str, Any]:
    return {"scored_by": "x", "reference_readers": ("x",), **more}


COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def test_completion_has_openais_form(model: Model) -> None:
    body = client(model).post(COMPLETIONS, json={"prompt": "say", "n": 2, "seed": 4, "stop": "x"}).json()
    assert body.pop("id").startswith("cmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "text_completion",
        "model": "runs/tiny",
        "choices": [
            {"index": 0, "text": "a0", "logprobs": None, "finish_reason": "stop"},
            {"index": 1, "text": "a1", "logprobs": None, "finish_reason": "length"},
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    }
    assert model.calls == [[GenerationRequest("say", num_responses=2, seed=4, stop=("x",))]]


def test_chat_has_openais_form_and_best_of_n_its_scores(model: Model) -> None:
    chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "say"}]}], "best_of": 3}
    sent = chat | {
        "answer": {"tests": [1]},
        "max_completion_tokens": 5,
        "temperature": 0.5,
        "model": "runs/tiny",
    }
    body = client(model, **ranking()).post(CHAT, json=sent).json()
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
    app = client(model, **ranking())
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
        (COMPLETIONS, [], "the body must be a JSON object, got list."),
        (COMPLETIONS, {"prompt": 5}, "prompt must be a text, token ids, or 1 to 1024 of these, got 5."),
        (COMPLETIONS, {"prompt": []}, "prompt must be a text, token ids, or 1 to 1024 of these, got []."),
        (COMPLETIONS, {"prompt": [-1]}, "prompt must be a text, token ids, or 1 to 1024 of these, got [-1]."),
        (CHAT, {"messages": "hi"}, "messages must be a text or a list of messages, not empty, got 'hi'."),
        (CHAT, {"messages": [{"role": "boss", "content": "a"}]}, "messages[0].role must be one of system"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": "a", "alias": "b"}]},
            "messages[0].alias is not supported, got",
        ),
        (COMPLETIONS, {"prompt": "a", "n": 0}, "n: Input should be greater than or equal to 1, got 0."),
        (COMPLETIONS, {"prompt": "a", "n": "2"}, "n: Input should be a valid integer, got '2'."),
        (COMPLETIONS, {"prompt": "a", "n": 3, "best_of": 2}, "best_of must be >= n = 3, got 2."),
        (COMPLETIONS, {"prompt": "a", "best_fo": 2}, "unknown key 'best_fo'; did you mean 'best_of'? keys:"),
        (COMPLETIONS, {"prompt": "a", "stream": 1}, "stream: Input should be a valid boolean, got 1."),
        (COMPLETIONS, {"prompt": "a", "logprobs": 21}, "logprobs must be in [0, 20], got 21."),
        (
            CHAT,
            {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2},
            "top_logprobs is only used",
        ),
        (COMPLETIONS, {"prompt": "a", "stream_options": {}}, "stream_options is only used with stream"),
        (COMPLETIONS, {"prompt": "a", "echo": True}, "echo is not supported, got true; leave it out."),
        (COMPLETIONS, {"prompt": "a", "presence_penalty": 0.1}, "presence_penalty is not supported, got 0.1"),
        (
            COMPLETIONS,
            {"prompt": "a", "temperature": 1e-320},
            "temperature must be 0 or in [0.01, 2], got 1e-320",
        ),
        (COMPLETIONS, {"prompt": "a", "temperature": "1"}, "temperature: Input should be a valid number"),
        (COMPLETIONS, {"prompt": ["a"] * 1024, "n": 2}, "the request asks for 1024 x 2 responses"),
        (COMPLETIONS, {"prompt": "a", "stop": ["x"] * 17}, "stop must be at most 16 texts"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, "max_tokens: Input should be greater than or equal"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 1.5}, "max_tokens: Input should be a valid integer"),
        (COMPLETIONS, {"prompt": "a", "n": True}, "n: Input should be a valid integer, got True."),
        (COMPLETIONS, {"prompt": [[]]}, "prompt must be a text, token ids"),
        (COMPLETIONS, {"prompt": [1, "a"]}, "prompt must be a text, token ids"),
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
    reply = client(model, **ranking()).post(path, json=body)
    error = reply.json()["error"]
    assert error["message"].startswith(message), error
    assert (reply.status_code, error["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": -Infinity}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b'{"prompt": ' + b"[" * 50_000,
        b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    ],
)
def test_invalid_json_is_refused(model: Model, body: bytes) -> None:
    reply = client(model).post(COMPLETIONS, content=body, headers={"Content-Type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["message"][:20]) == (400, "the body is not JSON")
    assert model.calls == []


def test_other_content_is_refused(model: Model) -> None:
    """A browser sends such a body to another site without asking."""
    reply = client(model).post(COMPLETIONS, content='{"prompt": "a"}', headers={"Content-Type": "text/plain"})
    assert (reply.status_code, "Content-Type: application/json" in reply.text) == (400, True)


def test_best_of_without_rewards_is_refused_unless_it_changes_nothing(model: Model) -> None:
    reply = client(model).post(COMPLETIONS, json={"prompt": "a", "best_of": 2})
    assert (reply.status_code, "best_of needs a [[reward]]" in reply.text) == (400, True)
    reply = client(model).post(COMPLETIONS, json={"prompt": "a", "best_of": 2, "n": 2})
    assert (reply.status_code, "best_of" in reply.json()) == (200, False)


def test_server_with_best_of_answers_a_request_without_a_reference_answer(model: Model) -> None:
    """It samples what is asked for, unranked, or ranks by the rewards that need no answer, and says so."""
    served = client(model, **ranking(best_of=4)).post(COMPLETIONS, json={"prompt": "a", "n": 2}).json()
    assert served["best_of"] == {
        "scored_by": None,
        "scores": [],
        "reason": "the request has no answer, which the reward x reads",
    }
    assert "score" not in served["choices"][0]
    free = client(model, **ranking(best_of=4, scored_without="weighted sum of y"))
    served = free.post(COMPLETIONS, json={"prompt": "a"}).json()
    assert served["best_of"] == {"scored_by": "weighted sum of y", "scores": [[0.0, -1.0, -2.0, -3.0]]}
    served = free.post(COMPLETIONS, json={"prompt": "a", "answer": "b"}).json()
    assert served["best_of"]["scored_by"] == "x"
    calls = [(call[0].num_responses, call[0].is_ranked, call[0].reference) for call in model.calls]
    assert calls == [(2, False, None), (4, True, None), (4, True, "b")]


def test_greedy_request_to_a_server_with_best_of_is_one_response(model: Model) -> None:
    served = client(model, scored_by="x", scored_without="x", best_of=4)
    assert served.post(COMPLETIONS, json={"prompt": "a", "temperature": 0}).status_code == 200
    assert (model.calls[0][0].num_responses, model.calls[0][0].is_ranked) == (1, True)


def test_unknown_model_is_not_found(model: Model) -> None:
    reply = client(model).post(COMPLETIONS, json={"prompt": "a", "model": "big"})
    assert (reply.status_code, reply.json()["error"]["message"]) == (
        404,
        "model must be 'runs/tiny', got 'big'; leave it out.",
    )


def test_parameters_without_effect_are_accepted(model: Model) -> None:
    neutral = {key: value for key, values in NEUTRAL.items() for value in values}
    chat = {"messages": [{"role": "user", "content": "a"}]}
    for path, sent in ((COMPLETIONS, {"prompt": "a"}), (CHAT, chat)):
        sent |= {"top_p": 1.0, "n": 1, "user": "me", "stop": None, "seed": None, **neutral}
        reply = client(model).post(path, json=sent)
        assert reply.status_code == 200, reply.text


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
    assert (listed["id"], listed["object"]) == ("runs/tiny", "model")
    for name in ("runs/tiny", "runs%2Ftiny"):
        assert app.get(f"/v1/models/{name}").json() == listed


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/nothing", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", COMPLETIONS, 405),
        ("DELETE", "/v1/models/runs/tiny", 405),
    ],
)
def test_errors_of_the_address_have_openais_form(model: Model, method: str, path: str, status: int) -> None:
    reply = client(model).request(method, path)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["param"]) == (status, "invalid_request_error", None)
    assert error["code"] == {404: "not_found", 405: "method_not_allowed"}[status]
    assert path in error["message"] or "other" in error["message"] or "model must be" in error["message"]


def test_api_key_is_required_where_there_is_one(model: Model) -> None:
    app = client(model, api_key="secret")
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
        for reply in (
            app.get("/v1/models", headers=headers),
            app.post(COMPLETIONS, json={"prompt": "a"}, headers=headers),
        ):
            assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
    assert model.calls == []
    assert app.get("/health").status_code == 200
    headers = {"Authorization": "Bearer secret"}
    assert app.post(COMPLETIONS, json={"prompt": "a"}, headers=headers).status_code == 200


def test_overloaded_server_says_so(model: Model) -> None:
    reply = client(model).post(COMPLETIONS, json={"prompt": "full"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "overloaded")
    assert reply.headers["Retry-After"] == "1"


def test_generation_is_closed_whatever_happens(model: Model) -> None:
    app = client(model)
    for prompt in ("a", "gone", "crash"):
        for stream in (False, True):
            app.post(COMPLETIONS, json={"prompt": prompt, "stream": stream})
    assert model.closed == 6


def events(reply: Any) -> list[Any]:
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    texts = reply.text.split("\n\n")
    assert texts[-2:] == ["data: [DONE]", ""]
    return [json.loads(text.removeprefix("data: ")) for text in texts[:-2]]


def test_stream_of_a_chat_has_openais_form(model: Model) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}], "stream": True, "n": 2}
    sent = chat | {"stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2}
    chunks = events(client(model).post(CHAT, json=sent))
    assert {(each["object"], each["model"]) for each in chunks} == {("chat.completion.chunk", "runs/tiny")}
    assert len({each["id"] for each in chunks}) == 1
    deltas = [(c["index"], c["delta"], c["finish_reason"]) for each in chunks for c in each["choices"]]
    assert deltas == [
        (index, delta, reason)
        for index, end in ((0, "stop"), (1, "length"))
        for delta, reason in (
            ({"role": "assistant", "content": ""}, None),
            ({"content": "a"}, None),
            ({"content": str(index)}, None),
            ({}, end),
        )
    ]
    first, second = (chunks[i]["choices"][0]["logprobs"]["content"] for i in (1, 2))
    assert first == [
        {
            "token": "a",
            "logprob": -0.5,
            "bytes": [97],
            "top_logprobs": [
                {"token": "a", "logprob": -0.5, "bytes": [97]},
                {"token": "é", "logprob": -1.0, "bytes": [195, 169]},
            ],
        }
    ]
    assert second == [{"token": "\ufffd", "logprob": -2.0, "bytes": None, "top_logprobs": []}]
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == ([], 4)


def test_stream_of_a_completion_has_openais_form(model: Model) -> None:
    sent = {"prompt": "a", "stream": True, "logprobs": 1}
    chunks = events(client(model).post(COMPLETIONS, json=sent))
    choices = [choice for each in chunks for choice in each["choices"]]
    assert [(each["text"], each["finish_reason"]) for each in choices] == [
        ("a", None),
        ("0", None),
        ("", "stop"),
    ]
    assert {each["object"] for each in chunks} == {"text_completion"}
    assert [each["logprobs"]["text_offset"] for each in choices[:2]] == [[0], [1]]
    assert choices[0]["logprobs"]["tokens"] == ["a"]
    assert choices[0]["logprobs"]["top_logprobs"] == [{"a": -0.5, "é": -1.0}]


def test_stream_of_ranked_responses_has_the_best_with_its_score(model: Model) -> None:
    sent = {"prompt": "a", "stream": True, "best_of": 3}
    chunks = events(client(model, scored_by="x", scored_without="x").post(COMPLETIONS, json=sent))
    assert "".join(c["text"] for each in chunks for c in each["choices"]) == "a0"
    assert chunks[-2]["choices"][0]["score"] == 0.0
    assert chunks[-1]["best_of"] == {"scored_by": "x", "scores": [[0.0, -1.0, -2.0]]}


@pytest.mark.parametrize("prompt", ["gone", "crash"])
def test_error_in_a_stream_is_its_last_event(model: Model, prompt: str) -> None:
    (chunk,) = events(client(model).post(COMPLETIONS, json={"prompt": prompt, "stream": True}))
    assert (chunk["error"]["type"], chunk["error"]["code"]) == ("server_error", "internal_server_error")
    reply = client(model).post(COMPLETIONS, json={"prompt": "bad", "stream": True})
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, "prompt is bad")


def test_logprobs_are_in_the_reply(model: Model) -> None:
    body = client(model).post(COMPLETIONS, json={"prompt": "a", "logprobs": 0}).json()
    assert body["choices"][0]["logprobs"] == {
        "tokens": ["a", "\ufffd"],
        "token_logprobs": [-0.5, -2.0],
        "top_logprobs": None,
        "text_offset": [0, 1],
    }
    chat = {"messages": [{"role": "user", "content": "a"}], "logprobs": True}
    body = client(model).post(CHAT, json=chat).json()
    assert [each["token"] for each in body["choices"][0]["logprobs"]["content"]] == ["a", "\ufffd"]
    assert [call[0].num_top for call in model.calls] == [0, 0]


def test_batcher_finds_the_request_at_fault() -> None:
    go = threading.Event()

    def invert(rows: list[int]) -> list[float]:
        go.wait(10)
        return [1 / row for row in rows]

    batcher = Batcher(invert).start()
    futures = [batcher.submit(rows) for rows in ([1], [2, 4], [0, 1], [5])]
    go.set()
    batcher.close()
    assert [each.result(10) for each in (futures[0], futures[1], futures[3])] == [[1], [0.5, 0.25], [0.2]]
    with pytest.raises(ZeroDivisionError):
        futures[2].result(10)


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


def test_server_info_lists_ranking_rewards_and_those_with_a_reference() -> None:
    names = {"right": "exact_match", "form": "think_tags"}
    rewards = [Reward(component=build("reward", {"name": n}), label=label) for label, n in names.items()]
    judge = {"name": "llm_judge", "endpoint": "http://a", "model": "b"}
    rewards.append(Reward(component=build("reward", judge), label="judge", weight=0.0))
    sampler = VLLM(top_p=0.9)

    def describe(**options: Any) -> ServerInfo:
        return describe_server(sampler, rewards, "m", **options)

    free = "weighted sum of form"
    assert describe(best_of=4) == ServerInfo("m", 4, "weighted sum", free, ("right",), 0.9)
    assert describe(best_of=4, reward="form") == ServerInfo("m", 4, "form", "form", (), 0.9)
    assert describe(best_of=4, reward="right") == ServerInfo("m", 4, "right", None, ("right",), 0.9)
    assert describe(reward="judge") == ServerInfo("m", None, "judge", "judge", (), 0.9)
    for without in ([], [rewards[-1]]):
        assert describe_server(Torch(), without, "m") == ServerInfo("m")
        with pytest.raises(
            ConfigError, match=r"--best-of 4 needs a \[\[reward\]\] with a weight other than 0"
        ):
            describe_server(Torch(), without, "m", best_of=4)
    with pytest.raises(ConfigError, match=r"--reward must be .*'x'; labels: none"):
        describe_server(Torch(), [], "m", best_of=4, reward="x")
    with pytest.raises(ConfigError, match=r"\[sampler\] is missing"):
        describe_server(None, [], "m")
