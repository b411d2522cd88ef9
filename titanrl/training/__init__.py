"""Training: the online and offline loops, the session they share, and the stages of a step."""
