"""Rounds of block tasks, on threads of this process or on Dask workers."""

# Hangs on dkgp/cluster/executors/base.py.
