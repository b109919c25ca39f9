"""Products with kernels of up to three features in nearly linear time, with a proven bound on each entry."""

# Hangs on dkgp/operators/block_tasks.py.
