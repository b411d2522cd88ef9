"""The ``titanrl`` command. Environment variables are read in this package and nowhere else."""

from __future__ import annotations

from titanrl.cli.app import app, main

__all__ = ["app", "main"]
