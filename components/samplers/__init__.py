"""Built-in samplers, one file or folder each; each registers its settings class."""
