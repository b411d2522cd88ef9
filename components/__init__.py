"""Built-in components, one folder per kind."""
