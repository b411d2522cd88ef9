"""Built-in filters, one per file; each file registers its class."""
