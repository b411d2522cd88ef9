"""Ablations: variants of one base experiment, run with several seeds and compared statistically."""
