"""Hyperparameters by maximum marginal likelihood, or leave-one-out, on random subsets."""
