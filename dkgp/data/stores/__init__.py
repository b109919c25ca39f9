"""Zarr stores with a manifest: datasets, models, predictions, checkpoints and factors."""
