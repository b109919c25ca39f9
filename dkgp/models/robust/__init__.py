"""Exact Gaussian processes whose noise has a heavy-tailed distribution."""

# Hangs on dkgp/models/exact.py.
