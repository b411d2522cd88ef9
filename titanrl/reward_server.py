"""A reward model behind HTTP: rows of requests that come together are scored together.

    GET  /model  -> {"heads": [name, ...], "max_length": 8192, "vocab_size": 49152, "vocabulary": "..."}
    POST /score  {"input_ids": [[1, 5, 9], ...]} -> {"heads": [name, ...], "scores": [[0.3], ...]}

The client is the reward ``reward_model`` with a ``url``.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Annotated, Any, TypeAlias

import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from titanrl.components.rewards.reward_model_scorer import ModelFacts, Scorer

__all__ = ["Batcher", "reward_app", "serve"]

Rows: TypeAlias = list[list[int]]
Scores: TypeAlias = list[list[float]]


class Question(BaseModel):
    """What is to be scored."""

    input_ids: list[Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]]


class Batcher:
    """Scores the rows of all requests that wait, whenever the model is free.

    Args:
        score: rows -> scores; called from one thread only.
    """

    def __init__(self, score: Callable[[Rows], Scores]) -> None:
        self._score = score
        self._waiting: queue.SimpleQueue[tuple[Rows, Future[Scores]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="titanrl-scores").start()

    def __call__(self, rows: Rows) -> Scores:
        """Returns the scores of the rows, in order; callable from any thread."""
        result: Future[Scores] = Future()
        self._waiting.put((rows, result))
        return result.result()

    def _work(self) -> None:
        while True:
            jobs = [self._waiting.get()]
            while not self._waiting.empty():
                jobs.append(self._waiting.get())
            try:
                scores = iter(self._score([row for rows, _ in jobs for row in rows]))
            except Exception as error:  # Whatever the model raises, who asked must learn it.
                for _, result in jobs:
                    result.set_exception(error)
            else:
                for rows, result in jobs:
                    result.set_result([next(scores) for _ in rows])


def reward_app(facts: ModelFacts, score: Callable[[Rows], Scores]) -> FastAPI:
    """Returns the application; a row that the model cannot read is refused with 422 and a reason."""
    app = FastAPI(title="titanrl reward model")
    batcher = Batcher(score)

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
        ConfigError: no reward model there.
    """
    scorer = Scorer(folder, dtype=dtype, batch_tokens=batch_tokens)
    uvicorn.run(reward_app(scorer.facts, scorer), host=host, port=port, log_level="warning")
