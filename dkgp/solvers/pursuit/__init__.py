"""Sparse conjugate directions pursuit: a path of solutions of A w = b with one more nonzero number each."""

# Hangs on dkgp/solvers/block_descent/selection.py.
