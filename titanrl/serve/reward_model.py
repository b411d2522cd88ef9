"""The reward model server: rows of waiting requests are scored together over HTTP.

    GET  /model  -> {"heads": [name, ...], "max_length": 8192, "vocab_size": 49152, "vocabulary": "..."}
    POST /score  {"input_ids": [[1, 5, 9], ...]} -> {"heads": [name, ...], "scores": [[0.3], ...]}

The client is the reward ``reward_model`` with ``url``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from titanrl.components.rewards.reward_model.scorer import ModelFacts, Scorer
from titanrl.serve import http
from titanrl.serve.limits import Guard

__all__ = ["reward_app", "serve"]

MAX_BODY_BYTES = 256 * 2**20
"""Largest body of a request: a batch of thousands of long rows."""

Rows: TypeAlias = list[list[int]]
Scores: TypeAlias = list[list[float]]


class ScoreRequest(BaseModel):
    """The rows to score."""

    input_ids: list[Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]]


def reward_app(facts: ModelFacts, score: Callable[[Rows], Scores]) -> FastAPI:
    """Return the application; it refuses a row that the model cannot read with status 422 and a reason.

    Args:
        facts: heads, context length and vocabulary of the model.
        score: rows of token ids -> one score per head of each.
    """
    app = FastAPI(title="titanrl reward model")
    batcher = http.Batcher(score).start()

    @app.get("/model")
    def model() -> dict[str, Any]:
        return facts._asdict()

    # Not a coroutine: fastapi calls it in a thread, which may wait for the model.
    @app.post("/score")
    def scores(request: ScoreRequest) -> dict[str, Any]:
        for number, row in enumerate(request.input_ids):
            if len(row) > facts.max_length:
                text = f"row {number} must have <= {facts.max_length} tokens, got {len(row)}."
                raise HTTPException(422, text)
            if max(row) >= facts.vocab_size:
                text = f"row {number} must have ids < {facts.vocab_size}, got {max(row)}."
                raise HTTPException(422, f"{text} Policy and reward model must have the same tokenizer.")
        return {"heads": facts.heads, "scores": batcher(request.input_ids)}

    return app


def serve(folder: str, *, host: str, port: int, dtype: str, batch_tokens: int) -> None:
    """Serve a reward model until the server is interrupted.

    Args:
        folder: folder of the model.
        host: as for ``http.bind_socket``.
        port: as for ``http.bind_socket``.
        dtype: precision of weights and computation.
        batch_tokens: number of tokens that are scored at a time.

    Raises:
        ConfigError: the folder has no reward model, or the address is not available.
    """
    bound = http.bind_socket(host, port)
    scorer = Scorer(folder, dtype=dtype, batch_tokens=batch_tokens)
    app = Guard(reward_app(scorer.facts, scorer), max_bytes=MAX_BODY_BYTES, error_body=_error_body)
    http.serve(app, bound, error_body=_error_body)


def _error_body(status: int, message: str) -> dict[str, Any]:
    return {"detail": message}
