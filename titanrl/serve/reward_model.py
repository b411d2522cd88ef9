"""A reward model behind HTTP: rows of requests that come together are scored together.

    GET  /model  -> {"heads": [name, ...], "max_length": 8192, "vocab_size": 49152, "vocabulary": "..."}
    POST /score  {"input_ids": [[1, 5, 9], ...]} -> {"heads": [name, ...], "scores": [[0.3], ...]}

The client is the reward ``reward_model`` with a ``url``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from titanrl.components.rewards.reward_model.scorer import ModelFacts, Scorer
from titanrl.serve import http

__all__ = ["reward_app", "serve"]

Rows: TypeAlias = list[list[int]]
Scores: TypeAlias = list[list[float]]


class Question(BaseModel):
    """What is to be scored."""

    input_ids: list[Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]]


def reward_app(facts: ModelFacts, score: Callable[[Rows], Scores]) -> FastAPI:
    """Returns the application; a row that the model cannot read is refused with 422 and a reason."""
    app = FastAPI(title="titanrl reward model")
    batcher = http.Batcher(score).start()

    @app.get("/model")
    def model() -> dict[str, Any]:
        return facts._asdict()

    # No coroutine: fastapi calls it in a thread, which may wait for the model.
    @app.post("/score")
    def scores(question: Question) -> dict[str, Any]:
        for number, row in enumerate(question.input_ids):
            if len(row) > facts.max_length:
                text = f"row {number} must have <= {facts.max_length} tokens, got {len(row)}."
                raise HTTPException(422, text)
            if max(row) >= facts.vocab_size:
                text = f"row {number} must have ids < {facts.vocab_size}, got {max(row)}."
                raise HTTPException(422, f"{text} Policy and reward model need one tokenizer.")
        return {"heads": facts.heads, "scores": batcher(question.input_ids)}

    return app


def serve(folder: str, *, host: str, port: int, dtype: str, batch_tokens: int) -> None:
    """Serves the reward model of ``folder`` until it is interrupted.

    Raises:
        ConfigError: no reward model there, or the address cannot be had.
    """
    taken = http.bind_socket(host, port)
    scorer = Scorer(folder, dtype=dtype, batch_tokens=batch_tokens)
    http.serve(reward_app(scorer.facts, scorer), taken)
