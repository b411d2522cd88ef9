"""HTTP servers: a model over the OpenAI API, best-of-N, and reward models."""
