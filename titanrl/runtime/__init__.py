"""The process: worker pool with timeouts, launching of ranks, lazy imports."""
