"""Hyperparameters by what a sparse model's evidence is: the variational bound on all data, or FITC's likelihood."""

# Hangs on dkgp/models/exact.py.
