"""Judgements by the content of their requests: in memory for a process, in a file for all runs."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

from titanrl.errors import ConfigError

__all__ = ["JudgementCache", "judgement_cache"]

MAX_IN_MEMORY = 65_536
"""Judgements that a process keeps without a file; the oldest are dropped."""
LOCK_SECONDS = 60.0


class JudgementCache:
    """Maps the content of a request to its score; failures are never stored.

    Several processes may share a file.

    Args:
        path: SQLite file, created with its folders; None: memory alone.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._memory: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    @staticmethod
    def key(*parts: object) -> str:
        """Returns a digest of everything that decides a judgement."""
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def get(self, keys: Sequence[str]) -> dict[str, float]:
        """Returns the scores that are known.

        Raises:
            ConfigError: the file cannot be read.
        """
        with self._lock:
            if self._path is None:
                return {key: self._memory[key] for key in keys if key in self._memory}
            with _database(self._path) as database:
                query = "SELECT score FROM judgements WHERE key = ?"
                rows = {key: database.execute(query, (key,)).fetchone() for key in keys}
            return {key: float(row[0]) for key, row in rows.items() if row is not None}

    def put(self, scores: dict[str, float]) -> None:
        """Stores scores.

        Raises:
            ConfigError: the file cannot be written.
        """
        with self._lock:
            if self._path is not None:
                with _database(self._path) as database, database:
                    database.executemany("INSERT OR REPLACE INTO judgements VALUES (?, ?)", scores.items())
                return
            self._memory.update(scores)
            while len(self._memory) > MAX_IN_MEMORY:
                self._memory.popitem(last=False)


@contextmanager
def _database(path: str) -> Iterator[sqlite3.Connection]:
    """Yields an open database; a connection belongs to one thread, so it is closed after each use."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=LOCK_SECONDS)) as database:
            database.execute("CREATE TABLE IF NOT EXISTS judgements (key TEXT PRIMARY KEY, score REAL)")
            yield database
    except (sqlite3.Error, OSError) as error:
        raise ConfigError(
            f"reward 'llm_judge' cache_file '{path}' cannot be used: {error}; name another file, or "
            "remove it."
        ) from None


@cache
def judgement_cache(path: str | None) -> JudgementCache:
    """Returns the process's cache for this file."""
    return JudgementCache(path)
