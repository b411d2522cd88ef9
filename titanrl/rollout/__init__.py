"""Rollouts: sampling responses, scoring them with rewards, and rejection sampling."""
