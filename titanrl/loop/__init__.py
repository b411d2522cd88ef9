"""The training loops: who does what, in which order."""
