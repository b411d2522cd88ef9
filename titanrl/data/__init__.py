"""Prompts and offline examples: tokenizing, ordering, loading and collating them into batches."""
