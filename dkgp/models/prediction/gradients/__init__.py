"""Gradients of predictions in their inputs, of exact and of sparse models."""

# Hangs on dkgp/models/exact.py.
