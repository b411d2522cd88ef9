"""Output heads: token log-probs, values, and both on one backbone."""
