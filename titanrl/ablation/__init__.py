"""Ablations: one base experiment, what varies, several seeds; runs, statistics and a report."""
