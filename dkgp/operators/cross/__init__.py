"""Products with K(X, Z), the kernel between all samples and some prototypes, held piece by piece."""

# Hangs on dkgp/operators/block_tasks.py.
