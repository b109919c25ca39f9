"""Evidence of labels in Laplace's approximation, its mode and its gradient, by dense algebra on a subset."""

# Hangs on dkgp/models/exact.py.
