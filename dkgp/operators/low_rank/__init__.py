"""A partial Cholesky factor of the kernel matrix, spread over the workers."""

# Hangs on dkgp/operators/block_tasks.py.
