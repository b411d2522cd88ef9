"""Recipes: several experiments in sequence, where later stages use the outputs of earlier ones."""
