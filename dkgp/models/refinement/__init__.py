"""Hyperparameters refined on all samples, by stochastic gradients of the marginal likelihood."""
