"""Models of every kind: what they say of themselves, their Zarr stores, and those that stay in memory."""

# Hangs on dkgp/models/exact.py.
