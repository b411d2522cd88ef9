"""Processes: a worker pool with timeouts, the launch of ranks, lazy imports."""
