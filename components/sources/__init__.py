"""Built-in components; each file here registers itself."""
