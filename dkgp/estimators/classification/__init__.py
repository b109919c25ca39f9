"""Classifiers on scikit-learn's conventions: least-squares support vector machines, exact and of prototypes."""

# Hangs on dkgp/models/exact.py.
