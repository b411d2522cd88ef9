"""Checks that need this machine: model files, installed packages, the mesh, and memory."""
