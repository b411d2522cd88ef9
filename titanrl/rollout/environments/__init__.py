"""Environments: rollouts of several requests, driven beside the sampler."""
