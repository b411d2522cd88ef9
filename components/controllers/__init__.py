"""Built-in controllers of the KL and entropy coefficients, one per file; each file registers its class."""
