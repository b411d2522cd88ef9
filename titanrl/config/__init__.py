"""Experiment files: loading, checking, writing."""

from titanrl.config.dump import dumps, to_table
from titanrl.config.experiment import Experiment
from titanrl.config.load import load, parse

__all__ = ["Experiment", "dumps", "load", "parse", "to_table"]
