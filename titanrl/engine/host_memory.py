"""What this process does with memory that it has freed, where the C library is glibc."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Literal

__all__ = ["MallocTrimmer", "tune_malloc", "resident_bytes"]

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Options of glibc's mallopt; 32 MiB is the highest threshold that it takes."""


def tune_malloc() -> None:
    """Lets the C library keep freed memory for this process, where it is glibc's.

    By default a large activation comes fresh from the kernel each time and is cleared page by page, a tenth
    of an update's time on a CPU.
    """
    allow = _of_libc("mallopt")
    for option, size in ((M_MMAP_THRESHOLD, 32 * 2**20), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 2**26)):
        allow(option, size)


class MallocTrimmer:
    """What the C library keeps of freed memory, where it is glibc's.

    What was freed in pieces is seldom used again by tensors of other sizes, so it would add to the next
    peak; what is used again must not come fresh from the kernel each time.
    """

    def __init__(self) -> None:
        self._held = 0

    def return_growth(self) -> None:
        """Gives it to the kernel if this process holds a sixteenth more than when that was done last."""
        try:
            held = resident_bytes("VmRSS")
        except OSError:
            return
        if held > self._held * 17 / 16:
            self._held = held
            _of_libc("malloc_trim")(0)


def resident_bytes(key: Literal["VmRSS", "VmHWM"]) -> int:
    """Returns what of this process is in memory, or the most that ever was.

    The most is not ``ru_maxrss``, which a new process inherits from the one that started it.

    Raises:
        OSError: the kernel doesn't tell.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def _of_libc(name: str) -> Callable[..., object]:
    """Returns a function of the C library, or one that does nothing where it has none of that name."""
    try:
        function: Callable[..., object] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return lambda *_: None
    return function
