"""Zarr stores with a manifest: datasets, models, predictions, checkpoints and factors."""

# Hangs on dkgp/models/exact.py.
