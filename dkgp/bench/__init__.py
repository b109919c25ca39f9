"""Benchmarks of a machine: dkgp against NumPy, LAPACK and itself, in ratios taken in one run."""

# Hangs on dkgp/solvers/driver.py.
