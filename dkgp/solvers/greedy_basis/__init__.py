"""Greedy choice of basis samples: one engine, of which sparse greedy and matching pursuit are settings."""

# Hangs on dkgp/solvers/block_descent/selection.py.
