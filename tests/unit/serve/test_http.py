"""The common part of the servers: orderly shutdown."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from typing import Any

from titanrl.serve.http import Batcher


def test_signal_ends_the_server_without_interrupting_the_wait() -> None:
    """It is delivered to another thread here; one that comes just before the wait begins is no better."""

    def work(rows: list[int]) -> Sequence[int]:
        return rows

    batcher: Batcher[int, int] = Batcher(work)
    ended, late = threading.Event(), threading.Event()

    def interrupt(*_: Any) -> None:
        batcher.close()

    def other() -> None:
        ended.wait(0.3)  # until the main thread waits
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        if not ended.wait(20):
            late.set()
            batcher.close()

    before = signal.signal(signal.SIGUSR1, interrupt)
    thread = threading.Thread(target=other)
    thread.start()
    try:
        batcher.run()
        ended.set()
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not late.is_set()
