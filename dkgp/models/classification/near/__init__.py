"""Gaussian process classifiers on a basis with neighbours, by Laplace's approximation."""

# Hangs on dkgp/models/exact.py.
