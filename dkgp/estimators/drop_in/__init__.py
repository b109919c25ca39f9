"""scikit-learn's Gaussian process estimators, to the letter, over dkgp's engine."""

# Hangs on dkgp/models/exact.py.
