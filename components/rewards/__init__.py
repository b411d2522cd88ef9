"""Built-in rewards, one file or folder each; each registers its class."""
