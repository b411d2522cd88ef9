"""Built-in corrections, one per file; each file registers its class."""
