"""A block-Vecchia factor of Kbar: a sparse triangle, leaf by leaf, that preconditions conjugate gradients."""

# Hangs on dkgp/operators/block_tasks.py.
