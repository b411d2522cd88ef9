"""Built-in aggregations, one per file; each file registers its class."""
