"""Built-in KL estimators, one per file; each file registers its class."""
