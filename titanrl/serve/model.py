"""A policy behind OpenAI-compatible HTTP: requests that come together are sampled and judged together."""

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
from titanrl.serve.openai import SEEDS, ChatRequest, CompletionRequest, ServerInfo, models_reply, reply

if TYPE_CHECKING:
    from pathlib import Path

    from titanrl.config.experiment import Experiment

__all__ = ["model_app", "serve_model", "served_by"]


def model_app(
    served: ServerInfo, batcher: http.Batcher[GenerationRequest, GenerationResult | Exception]
) -> FastAPI:
    """Returns the application; what it cannot answer it refuses with 400 and a reason, as OpenAI words it."""
    app, started = FastAPI(title="titanrl model"), int(time.time())

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return models_reply(served, started)

    async def answered(request: CompletionRequest | ChatRequest) -> Any:
        if request.model not in (None, served.name):
            text = f"model must be {served.name!r}, got {request.model!r}; leave it out."
            return _error(HTTPStatus.NOT_FOUND, text)
        questions = request.questions(served, secrets.randbelow(SEEDS))
        results = await asyncio.wrap_future(batcher.submit(questions))
        found = [each for each in results if isinstance(each, GenerationResult)]
        if len(found) < len(results):
            raise next(each for each in results if isinstance(each, Exception))
        return reply(request, served, found)

    @app.post("/v1/completions")
    async def completions(request: CompletionRequest) -> Any:
        return await answered(request)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: ChatRequest) -> Any:
        return await answered(request)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        return _error(HTTPStatus.BAD_REQUEST, "; ".join(map(_said, error.errors())))

    @app.exception_handler(ValueError)
    async def refused(_: Request, error: ValueError) -> JSONResponse:
        return _error(HTTPStatus.BAD_REQUEST, str(error))

    @app.exception_handler(TrainingError)
    async def unjudged(_: Request, error: TrainingError) -> JSONResponse:
        return _error(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))

    # Who asked learns it, uvicorn logs where it came from, and the others are answered on.
    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        return _error(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")

    return app


def _error(status: HTTPStatus, message: str) -> JSONResponse:
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    body = {"message": message, "type": kind, "param": None, "code": status.phrase.lower().replace(" ", "_")}
    return JSONResponse({"error": body}, status)


def _said(problem: dict[str, Any]) -> str:
    """Returns what is wrong with a body: our own words as they are, pydantic's with key and value."""
    own = problem.get("ctx", {}).get("error")
    if isinstance(own, ValueError):
        return str(own)
    place = ".".join(str(part) for part in problem["loc"] if part != "body")
    if problem["type"] == "json_invalid":
        return f"the body is no JSON: {own}."
    if problem["type"] == "missing":
        return f"{place or 'the body'} is missing."
    return f"{place}: {problem['msg']}, got {problem['input']!r:.80}."


def served_by(experiment: Experiment, name: str, best_of: int | None, reward: str | None) -> ServerInfo:
    """Returns what a server of an experiment offers.

    Args:
        name: of the model. best_of: for requests that do not say. reward: label of the reward that ranks;
            None: [evaluation] best_of_reward, or the weighted sum.

    Raises:
        ConfigError: nothing samples, or no reward of that label is there.
    """
    if experiment.sampler is None:
        raise ConfigError(
            "[sampler] is missing, with which answers are sampled; serve a file that has one, and name this "
            "model or run by --model."
        )
    chosen = ranking_rewards(experiment.reward, reward)
    if best_of is not None and not chosen:
        raise ConfigError(
            f"--best-of {best_of} needs a [[reward]] that ranks the answers, of a weight other than 0; add "
            "one, name one by --reward, or leave the option out."
        )
    readers = [each.label for each in chosen if ("text", "answer") in declared(each.component, "in_keys")]
    scored_by = (reward or "weighted sum") if chosen else None
    top_p = getattr(experiment.sampler, "top_p", None)
    return ServerInfo(name, best_of, scored_by, tuple(readers), top_p)


def serve_model(
    experiment: Experiment,
    run: Path | None,
    *,
    best_of: int | None,
    reward: str | None,
    host: str,
    port: int,
    say: Callable[[str], None],
) -> None:
    """Serves a policy until it is interrupted, from one process.

    Args:
        experiment: a checked one. run: folder of the run whose newest checkpoint answers; None: the weights
            are those of [model] path. best_of, reward: as for ``served_by``. say: is told when it is ready.

    Raises:
        ConfigError: ``served_by``'s, no checkpoint, or the address cannot be had.
    """
    from titanrl.engine import init_distributed
    from titanrl.rollout.generator import load_generator

    if reward is None and experiment.evaluation is not None:
        reward = experiment.evaluation.best_of_reward
    served = served_by(experiment, str(run or experiment.model.path), best_of, reward)
    taken = http.bind_socket(host, port)
    init_distributed()
    with closing(load_generator(experiment, run)) as respondent:
        batcher = http.Batcher(BestOf(respondent, reward))
        taken.listen()  # From here on clients wait instead of being refused.
        say(f"serving {served.name} at {http.address(taken)}")
        http.serve_in_thread(batcher, model_app(served, batcher), taken)
