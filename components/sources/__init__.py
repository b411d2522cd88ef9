"""Built-in sources of prompts and offline data, one file or folder each; each registers its class."""
