"""Products with K(X, Z), the kernel between all samples and some prototypes, of which no more is held than a piece."""

# Hangs on dkgp/operators/block_tasks.py.
