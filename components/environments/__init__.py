"""Environments: rollouts of several requests to the policy."""
