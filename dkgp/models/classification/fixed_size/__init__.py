"""Fixed-size least-squares support vector machines: a few prototypes, tuned by fast cross-validation."""

# Hangs on dkgp/models/exact.py.
