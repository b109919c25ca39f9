"""Noise that is not the same for all samples, as values that hyperparameters and models carry."""

# Hangs on dkgp/models/exact.py.
