"""Built-in advantage estimators, one per file; each file registers its class."""
