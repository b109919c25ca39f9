"""Kernels as small immutable value objects, and the compiled tile evaluators behind them."""

from __future__ import annotations

from dkgp.kernels.base import Kernel, kernel_from_json
from dkgp.kernels.squared_exponential import SquaredExponential
from dkgp.kernels.tiles import Features, TileEvaluator

__all__ = ["Features", "Kernel", "SquaredExponential", "TileEvaluator", "kernel_from_json"]
