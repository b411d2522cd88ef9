"""The ``titanrl`` command. The environment is read here and nowhere else."""

from __future__ import annotations

from titanrl.cli.app import app, main

__all__ = ["app", "main"]
