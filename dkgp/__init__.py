"""Exact Gaussian process regression by greedy block coordinate descent, out of core, on Dask."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
