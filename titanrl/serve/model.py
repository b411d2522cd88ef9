"""The model server: a policy over OpenAI-compatible HTTP. Waiting requests are generated together."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import closing
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from titanrl.errors import ConfigError, TrainingError
from titanrl.registry import declared
from titanrl.serve import http
from titanrl.serve.best_of_n import BestOf, GenerationRequest, GenerationResult, ranking_rewards
from titanrl.serve.openai import NUM_SEEDS, ChatRequest, CompletionRequest, ServerInfo, models_reply, reply

if TYPE_CHECKING:
    from pathlib import Path

    from titanrl.config.experiment import Experiment

__all__ = ["describe_server", "model_app", "serve_model"]


def model_app(
    info: ServerInfo, batcher: http.Batcher[GenerationRequest, GenerationResult | Exception]
) -> FastAPI:
    """Return the application; it refuses invalid requests with status 400 and a reason in OpenAI's format.

    Args:
        info: name and options of the server.
        batcher: generates the responses.
    """
    app, started = FastAPI(title="titanrl model"), int(time.time())

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return models_reply(info, started)

    async def respond(request: CompletionRequest | ChatRequest) -> Any:
        if request.model not in (None, info.name):
            text = f"model must be {info.name!r}, got {request.model!r}; leave it out."
            return _error(HTTPStatus.NOT_FOUND, text)
        requests = request.generation_requests(info, secrets.randbelow(NUM_SEEDS))
        results = await asyncio.wrap_future(batcher.submit(requests))
        generated = [each for each in results if isinstance(each, GenerationResult)]
        if len(generated) < len(results):
            raise next(each for each in results if isinstance(each, Exception))
        return reply(request, info, generated)

    @app.post("/v1/completions")
    async def completions(request: CompletionRequest) -> Any:
        return await respond(request)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: ChatRequest) -> Any:
        return await respond(request)

    @app.exception_handler(RequestValidationError)
    async def invalid_body(_: Request, error: RequestValidationError) -> JSONResponse:
        return _error(HTTPStatus.BAD_REQUEST, "; ".join(map(_describe, error.errors())))

    @app.exception_handler(ValueError)
    async def invalid_request(_: Request, error: ValueError) -> JSONResponse:
        return _error(HTTPStatus.BAD_REQUEST, str(error))

    @app.exception_handler(TrainingError)
    async def failed_rewards(_: Request, error: TrainingError) -> JSONResponse:
        return _error(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))

    # The client gets the message, uvicorn logs the traceback, and the server continues.
    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        return _error(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")

    return app


def _error(status: HTTPStatus, message: str) -> JSONResponse:
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    body = {"message": message, "type": kind, "param": None, "code": status.phrase.lower().replace(" ", "_")}
    return JSONResponse({"error": body}, status)


def _describe(problem: dict[str, Any]) -> str:
    """Return the message of an invalid body: our own as it is, pydantic's with key and value."""
    reason = problem.get("ctx", {}).get("error")
    if isinstance(reason, ValueError):
        return str(reason)
    key = ".".join(str(part) for part in problem["loc"] if part != "body")
    if problem["type"] == "json_invalid":
        return f"the body is not JSON: {reason}."
    if problem["type"] == "missing":
        return f"{key or 'the body'} is missing."
    return f"{key}: {problem['msg']}, got {problem['input']!r:.80}."


def describe_server(experiment: Experiment, name: str, best_of: int | None, reward: str | None) -> ServerInfo:
    """Return the name and options of a server of an experiment.

    Args:
        experiment: a checked experiment.
        name: name of the model for clients.
        best_of: responses to sample if a request does not set best_of; None: as many as it returns.
        reward: label of the reward that ranks; None: the weighted sum.

    Raises:
        ConfigError: [sampler] is missing, no reward has the label, or none can rank.
    """
    if experiment.sampler is None:
        raise ConfigError(
            "[sampler] is missing, and responses are sampled with it; serve a file that has one, and give "
            "this model or run with --model."
        )
    rewards = ranking_rewards(experiment.reward, reward)
    if best_of is not None and not rewards:
        raise ConfigError(
            f"--best-of {best_of} needs a [[reward]] with a weight other than 0 that ranks the responses; "
            "add one, select one with --reward, or leave the option out."
        )
    readers = [each.label for each in rewards if ("text", "answer") in declared(each.component, "in_keys")]
    scored_by = (reward or "weighted sum") if rewards else None
    top_p = getattr(experiment.sampler, "top_p", None)
    return ServerInfo(name, best_of, scored_by, tuple(readers), top_p)


def serve_model(
    experiment: Experiment,
    run: Path | None,
    *,
    step: str | int | None = None,
    best_of: int | None,
    reward: str | None,
    host: str,
    port: int,
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
        say: called with the address once the server is ready.

    Raises:
        ConfigError: as ``describe_server``; the run has no complete checkpoint; the address is not available.
    """
    from titanrl.engine import init_distributed
    from titanrl.rollout.generator import load_generator

    if reward is None and experiment.evaluation is not None:
        reward = experiment.evaluation.best_of_reward
    info = describe_server(experiment, str(run or experiment.model.path), best_of, reward)
    bound = http.bind_socket(host, port)
    init_distributed()
    with closing(load_generator(experiment, run, step)) as generator:
        batcher = http.Batcher(BestOf(generator, reward))
        bound.listen()  # From now on clients wait instead of being refused.
        say(f"serving {info.name} at {http.address(bound)}")
        http.serve_in_thread(batcher, model_app(info, batcher), bound)
