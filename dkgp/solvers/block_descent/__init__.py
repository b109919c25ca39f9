"""Greedy block coordinate descent (Bo and Sminchisescu 2008): active sets, dense subproblems, conjugate steps."""

# Hangs on dkgp/solvers/driver.py.
