"""The algorithm: its table, the dataflow, and the pure stages from scored rollouts to loss weights."""
