"""Evaluation: held-out scores, pass@k, reward-model metrics, overlap with the training data."""
