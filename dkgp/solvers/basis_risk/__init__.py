"""Regularised risks over the span of a basis' kernel columns, minimised by Newton's method."""

# Hangs on dkgp/solvers/driver.py.
