"""Kernel sums by a tree over the samples that prunes what hardly contributes."""

# Hangs on dkgp/operators/block_tasks.py.
