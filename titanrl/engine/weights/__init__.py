"""Weights: loading, gathering, streaming, tying across pipeline stages."""
