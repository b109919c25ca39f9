"""Gaussian process classification by Laplace's approximation: at any size, with proven intervals."""

# Hangs on dkgp/models/exact.py.
