"""Random numbers as a function of the sample: the same on any rank, in any batch, after any interruption."""

from __future__ import annotations

import hashlib
import struct

import torch

__all__ = ["sample_seed", "turn_seed", "uniforms"]

GOLDEN = 0x9E3779B97F4A7C15
"""SplitMix64's increment, 2^64 over the golden ratio."""


def sample_seed(seed: int, step: int, group: int, sample: int) -> int:
    """Returns the seed of one response, in [0, 2^63): BLAKE2b of the four numbers.

    Args:
        seed: of the run.
        step: of the loop.
        group: index of the prompt within the step.
        sample: index of the response within the group.
    """
    numbers = struct.pack("<4q", seed, step, group, sample)
    return int.from_bytes(hashlib.blake2b(numbers, digest_size=8, person=b"titanrl").digest(), "little") >> 1


def turn_seed(seed: int, turn: int, agent: int = 0) -> int:
    """Returns the seed of one turn of a rollout, in [0, 2^63); that of the first turn is ``seed`` itself.

    Args:
        seed: of the rollout's first turn.
        turn: number of the turn among those of its agent.
        agent: the agent that acts.
    """
    return seed if turn == agent == 0 else sample_seed(seed, turn, agent, 1)


def uniforms(seeds: torch.Tensor, position: int | torch.Tensor) -> torch.Tensor:
    """Returns [R] float64 in [0, 1): for each row the number of its seed at ``position``.

    Two rounds of SplitMix64's finalizer over seed and position; stateless, so rows may be added and removed.

    Args:
        seeds: [R] int64.
        position: of the token within the response, >= 0: of all rows, or [R] int64.

    Source: Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014.
    """
    if isinstance(position, torch.Tensor):
        offset: int | torch.Tensor = (position + 1) * _signed(GOLDEN)
    else:
        offset = _signed((position + 1) * GOLDEN)
    mixed = _mix(_mix(seeds + _signed(GOLDEN)) + offset)
    return _shift(mixed, 11).double() * 2.0**-53


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _signed(value: int) -> int:
    """Returns the signed number with the lowest 64 bits of ``value``; int64 wraps like unsigned numbers."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Returns the unsigned right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
