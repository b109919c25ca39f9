"""Classification by least-squares support vector machines, on all samples or on a few prototypes."""

# Hangs on dkgp/models/exact.py.
