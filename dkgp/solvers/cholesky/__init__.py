"""Cholesky factors: dense blocks, the whole matrix in memory, and tiles on disk."""

# Hangs on dkgp/solvers/driver.py.
