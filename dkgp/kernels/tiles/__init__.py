"""Compiled tile evaluators: the entries of a kernel matrix, block by block, with the same bits on every processor."""

# Hangs on dkgp/kernels/tiles/stages.py.
