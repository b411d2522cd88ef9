"""A float32 head in the trainer and in the sampler."""

from __future__ import annotations
