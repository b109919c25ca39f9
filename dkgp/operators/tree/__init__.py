"""Kernel sums by a tree over the samples that prunes what hardly contributes."""
