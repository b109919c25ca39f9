"""Hyperparameters by maximum marginal likelihood, or leave-one-out, on random subsets."""

# Hangs on dkgp/models/exact.py.
