"""Logistic classifiers and Gaussian process classifiers of a few prototypes, and their distance to the exact ones."""

# Hangs on dkgp/models/exact.py.
