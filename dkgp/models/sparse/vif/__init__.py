"""A sparse model with neighbours: what its basis leaves of a sample depends on the nearest samples before it."""

# Hangs on dkgp/models/exact.py.
