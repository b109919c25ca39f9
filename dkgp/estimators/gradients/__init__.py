"""Gradients of predictions in the inputs, and acquisition functions made of them."""

# Hangs on dkgp/models/exact.py.
