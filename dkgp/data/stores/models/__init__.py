"""Models of every kind: their description, their Zarr stores, and their addresses in memory."""

# Hangs on dkgp/models/exact.py.
