"""How the C library, where it is glibc, handles memory that this process has freed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Literal

__all__ = ["MallocTrimmer", "tune_malloc", "resident_bytes"]

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Options of glibc's mallopt; 32 MiB is the highest threshold that it takes."""


def tune_malloc() -> None:
    """Makes glibc keep freed memory for this process.

    By default every large activation is new memory from the kernel, which clears it page by page: a tenth of
    an update's time on a CPU.
    """
    mallopt = _libc_function("mallopt")
    for option, size in ((M_MMAP_THRESHOLD, 32 * 2**20), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 2**26)):
        mallopt(option, size)


class MallocTrimmer:
    """Returns freed memory that glibc keeps to the kernel once this process has grown.

    Memory freed in pieces is seldom reused by tensors of other sizes, so it would add to the next peak;
    memory that is reused should stay with the process.
    """

    def __init__(self) -> None:
        self._resident = 0

    def return_growth(self) -> None:
        """Trims if this process holds a sixteenth more memory than at the last trim."""
        try:
            resident = resident_bytes("VmRSS")
        except OSError:
            return
        if resident > self._resident * 17 / 16:
            self._resident = resident
            _libc_function("malloc_trim")(0)


def resident_bytes(key: Literal["VmRSS", "VmHWM"]) -> int:
    """Returns the resident memory of this process, or its peak.

    The peak is not ``ru_maxrss``, which a new process inherits from its parent.

    Args:
        key: "VmRSS" for the present, "VmHWM" for the peak.

    Raises:
        OSError: the kernel has no /proc/self/status.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def _libc_function(name: str) -> Callable[..., object]:
    """Returns a function of the C library, or one that does nothing if the library lacks it."""
    try:
        function: Callable[..., object] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return lambda *_: None
    return function
