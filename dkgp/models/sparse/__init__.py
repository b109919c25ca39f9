"""Sparse Gaussian processes: means of m kernel columns, with a proven distance to the exact one."""

# Hangs on dkgp/models/exact.py.
