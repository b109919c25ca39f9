"""Targets before they are fitted: a regressor's mean is taken off, and entries that are not known are left out."""

# Hangs on dkgp/models/exact.py.
