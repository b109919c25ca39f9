"""Kernel logistic regression of all samples, every decision within a proven bound of the exact minimiser's."""

# Hangs on dkgp/solvers/driver.py.
