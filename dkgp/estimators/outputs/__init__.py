"""Predictions in the form of what they are asked for: arrays, pandas objects, lazy dask ones."""

# Hangs on dkgp/models/exact.py.
