"""Searches for a kernel's width: whom they ask, by annealing, by paths, and by whole pools."""

# Hangs on dkgp/models/exact.py.
