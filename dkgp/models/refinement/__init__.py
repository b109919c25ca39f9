"""Hyperparameters refined on all samples, by stochastic gradients of the marginal likelihood."""

# Hangs on dkgp/solvers/driver.py.
