"""The model server: a policy over OpenAI-compatible HTTP."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import closing
from http import HTTPStatus
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from titanrl.errors import ConfigError, TrainingError
from titanrl.models import inspect
from titanrl.rollout.whole_stream import WholeStream
from titanrl.serve import http
from titanrl.serve.best_of_n import (
    GenerationRequest,
    Ranker,
    ranking_rewards,
    reads_reference,
    without_reference,
)
from titanrl.serve.engine import EngineLoop, Overloaded
from titanrl.serve.limits import Guard
from titanrl.serve.openai import NUM_SEEDS, ChatRequest, CompletionRequest, ServerInfo, parse_body
from titanrl.serve.prompts import PromptEncoder, longest_token
from titanrl.serve.replies import DONE, Reply, error_body, event, model_reply
from titanrl.serve.service import Generates, ModelService

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import ASGIApp, Receive, Scope, Send

    from titanrl.config.experiment import Experiment
    from titanrl.config.tables import Reward
    from titanrl.protocols import SamplerSettings, TokenStream
    from titanrl.rollout.generator import Generator

__all__ = ["describe_server", "model_app", "serve_model"]

MAX_BODY_BYTES = 8 * 2**20
"""Largest body of a request."""
GONE = 499
"""Status of a reply that no client receives."""

Parsed = TypeVar("Parsed")


class Service(Protocol):
    """The model behind the application."""

    async def call(self, function: Callable[[], Parsed]) -> Parsed:
        """Return the result of a function that may take long, without keeping other requests waiting."""
        ...

    async def open(self, requests: Sequence[GenerationRequest]) -> Generates:
        """Start the generation of responses.

        Raises:
            ValueError: a prompt is invalid.
            Overloaded: too many responses wait.
        """
        ...


def model_app(info: ServerInfo, service: Service, api_key: str | None = None) -> ASGIApp:
    """Return the application; it refuses invalid requests with a reason in OpenAI's format.

    Args:
        info: name and options of the server.
        service: generates the responses.
        api_key: key that requests must carry; None: none is needed.
    """
    started = int(time.time())

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model_reply(info, started)]})

    async def model(request: Request) -> Response:
        _check_model(info, request.path_params["id"])
        return JSONResponse(model_reply(info, started))

    async def completions(request: Request) -> Response:
        return await _respond(request, CompletionRequest, info, service)

    async def chat_completions(request: Request) -> Response:
        return await _respond(request, ChatRequest, info, service)

    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/v1/models/{id:path}", model),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        ],
        exception_handlers={
            HTTPException: _http_error,
            ValueError: _handler(HTTPStatus.BAD_REQUEST),
            Overloaded: _handler(HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "1"}),
            TrainingError: _handler(HTTPStatus.INTERNAL_SERVER_ERROR),
            ClientDisconnect: _gone,
            # The client gets the message, uvicorn logs the traceback, and the server continues.
            Exception: _failed,
        },
    )
    return Guard(app, max_bytes=MAX_BODY_BYTES, error_body=error_body, api_key=api_key)


async def _respond(
    http_request: Request,
    kind: type[CompletionRequest] | type[ChatRequest],
    info: ServerInfo,
    service: Service,
) -> Response:
    if http_request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise ValueError("the body must be a JSON object with Content-Type: application/json.")
    body = await http_request.body()

    def parse() -> tuple[CompletionRequest | ChatRequest, list[GenerationRequest]]:
        request = parse_body(body, kind)
        return request, request.generation_requests(info, secrets.randbelow(NUM_SEEDS))

    request, requests = await service.call(parse)
    if request.model is not None:
        _check_model(info, request.model)
    reply = Reply(request, info, requests)
    generation = await service.open(requests)
    if request.stream:
        return _EventStream(reply, generation)
    try:
        results = await _while_connected(http_request, generation.results())
    finally:
        generation.close()
    return JSONResponse(reply.whole(results))


class _EventStream(StreamingResponse):
    """Server-sent events; what is not sampled yet is dropped when the client leaves."""

    def __init__(self, reply: Reply, generation: Generates) -> None:
        self._generation = generation
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(_events(reply, generation), media_type="text/event-stream", headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.close()


async def _events(reply: Reply, generation: Generates) -> AsyncIterator[bytes]:
    try:
        async for delta in generation.deltas():
            for chunk in reply.chunks(delta):
                yield event(chunk)
        for chunk in reply.last_chunk(await generation.results()):
            yield event(chunk)
    except Exception as error:
        # The status is sent already.
        text = str(error) if isinstance(error, TrainingError) else f"{type(error).__name__}: {error}"
        yield event(error_body(HTTPStatus.INTERNAL_SERVER_ERROR, text))
    yield DONE


async def _while_connected(request: Request, coroutine: Coroutine[Any, Any, Parsed]) -> Parsed:
    """Await a coroutine, and cancel it when the client leaves.

    Raises:
        ClientDisconnect: the client has left.
    """

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(coroutine), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


def _check_model(info: ServerInfo, name: str) -> None:
    if name != info.name:
        text = f"model must be {info.name!r}, got {name[:200]!r}; leave it out."
        raise HTTPException(HTTPStatus.NOT_FOUND, text)


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(error_body(status, message), status, headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    texts: dict[int, str] = {
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.url.path} does not take {request.method}.",
        HTTPStatus.NOT_FOUND: f"{request.url.path} does not exist; see /v1/models for what is served.",
    }
    is_own = error.detail != HTTPStatus(error.status_code).phrase
    text = error.detail if is_own else texts.get(error.status_code, error.detail)
    return _error(error.status_code, text, dict(error.headers or {}))


def _handler(
    status: HTTPStatus, headers: dict[str, str] | None = None
) -> Callable[[Request, Exception], Coroutine[Any, Any, Response]]:
    async def handle(_: Request, error: Exception) -> Response:
        return _error(status, str(error), headers)

    return handle


async def _failed(_: Request, error: Exception) -> Response:
    return _error(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")


async def _gone(_: Request, error: Exception) -> Response:
    return Response(status_code=GONE)


def describe_server(
    sampler: SamplerSettings | None,
    rewards: Sequence[Reward],
    name: str,
    *,
    best_of: int | None = None,
    reward: str | None = None,
) -> ServerInfo:
    """Return the name and options of a server.

    Args:
        sampler: the [sampler] table; None: it is missing.
        rewards: the [[reward]] tables.
        name: name of the model for clients.
        best_of: responses to sample if a request does not set best_of; None: as many as it returns.
        reward: label of the reward that ranks; None: the weighted sum.

    Raises:
        ConfigError: [sampler] is missing, no reward has the label, or none can rank.
    """
    if sampler is None:
        raise ConfigError(
            "[sampler] is missing, and responses are sampled with it; serve a file that has one, and give "
            "this model or run with --model."
        )
    ranking = ranking_rewards(rewards, reward)
    if best_of is not None and not ranking:
        raise ConfigError(
            f"--best-of {best_of} needs a [[reward]] with a weight other than 0 that ranks the responses; "
            "add one, select one with --reward, or leave the option out."
        )
    readers = [each.label for each in ranking if reads_reference(each, rewards)]
    free = without_reference(rewards, reward)
    scored_by = (reward or "weighted sum") if ranking else None
    scored_without = scored_by
    if readers:
        labels = ", ".join(each.label for each in free if each.weight != 0)
        scored_without = f"weighted sum of {labels}" if free else None
    top_p = getattr(sampler, "top_p", None)
    return ServerInfo(name, best_of, scored_by, scored_without, tuple(readers), top_p)


def _ranking_text(info: ServerInfo) -> str:
    """Return how responses are ranked if a request does not say; "" if they are not."""
    if info.best_of is None:
        return ""
    text = f"best of {info.best_of} by {info.scored_by}"
    if not info.reference_readers:
        return text
    readers = ", ".join(map(repr, info.reference_readers))
    without = "is not ranked" if info.scored_without is None else f"is ranked by the {info.scored_without}"
    return f"{text}, which reads the answer ({readers}): a request without an answer {without}"


def serve_model(
    experiment: Experiment,
    run: Path | None,
    *,
    step: str | int | None = None,
    best_of: int | None,
    reward: str | None,
    host: str,
    port: int,
    api_key: str | None = None,
    say: Callable[[str], None],
) -> None:
    """Serve a policy from this process until it is interrupted.

    Args:
        experiment: a checked experiment.
        run: run folder whose checkpoint has the weights; None: [model] path has them.
        step: of the checkpoint, or "best"; None: the newest whole one.
        best_of: as for ``describe_server``.
        reward: label of the reward that ranks; None: [evaluation] best_of_reward, or the weighted sum.
        host: as for ``http.bind_socket``.
        port: as for ``http.bind_socket``.
        api_key: key that requests must carry; None: none is needed.
        say: called with the address once the server is ready.

    Raises:
        ConfigError: as ``describe_server``; the run has no complete checkpoint; the address is not available.
    """
    from titanrl.engine import init_distributed
    from titanrl.rollout.generator import load_generator

    if reward is None and experiment.evaluation is not None:
        reward = experiment.evaluation.best_of_reward
    info = describe_server(
        experiment.sampler,
        experiment.reward,
        str(run or experiment.model.path),
        best_of=best_of,
        reward=reward,
    )
    bound = http.bind_socket(host, port)
    init_distributed()
    with closing(load_generator(experiment, run, step)) as generator:
        engine = EngineLoop(lambda: _token_stream(generator))
        service = _service(generator, engine, reward)
        bound.listen(http.BACKLOG)  # From now on clients wait instead of being refused.
        if ranking := _ranking_text(info):
            say(ranking)
        if api_key is None and not ip_address(bound.getsockname()[0]).is_loopback:
            say("no --api-key: any client that reaches this address can use the server")
        say(f"serving {info.name} at {http.address(bound)}")
        http.serve_in_thread(
            engine,
            model_app(info, service, api_key),
            bound,
            error_body=error_body,
            drain_seconds=experiment.run.stop_seconds,
        )


def _token_stream(generator: Generator) -> TokenStream:
    start = getattr(generator.sampler, "stream", None)
    return WholeStream(generator.sampler, generator.seed) if start is None else start()


def _service(generator: Generator, engine: EngineLoop, reward: str | None) -> ModelService:
    settings, tokenizer = generator.sampler_settings, generator.tokenizer
    encode = PromptEncoder(
        tokenizer,
        vocab_size=inspect(generator.model_path).vocab_size,
        max_length=generator.max_length,
        max_response_tokens=settings.max_response_tokens,
        longest_token=longest_token(tokenizer),
    )
    ranker = http.Batcher(Ranker(generator.rewards, reward, generator.sampler.version)).start()
    return ModelService(
        engine, encode, ranker, tokenizer, seed=generator.seed, temperature=settings.temperature
    )
