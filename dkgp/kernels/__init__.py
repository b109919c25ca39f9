"""Kernels as small immutable value objects, and the compiled tile evaluators behind them."""

# Hangs on dkgp/kernels/tiles/stages.py.

from __future__ import annotations

from dkgp.kernels.base import Kernel, Parameter, kernel_from_json
from dkgp.kernels.compact import Cubic, Spherical, Wendland
from dkgp.kernels.composite import Product, Sum
from dkgp.kernels.constants import Constant, White, fold_white
from dkgp.kernels.dot_product import Linear, Polynomial
from dkgp.kernels.expression import kernel_names, kernel_text, parse_kernel
from dkgp.kernels.functions import register_function
from dkgp.kernels.periodic import Periodic
from dkgp.kernels.stationary import Matern12, Matern32, Matern52, RationalQuadratic, SquaredExponential, Stable
from dkgp.kernels.tiles.evaluator import EntryCount, TileEvaluator, count_entries, counting
from dkgp.kernels.tiles.features import Features
from dkgp.kernels.user import UserKernel, check_positive_definite, has_user_function
from dkgp.kernels.wrapped import ActiveDimensions, Scaled

__all__ = [
    "ActiveDimensions",
    "Constant",
    "Cubic",
    "EntryCount",
    "Features",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Parameter",
    "Periodic",
    "Polynomial",
    "Product",
    "RationalQuadratic",
    "Scaled",
    "Spherical",
    "SquaredExponential",
    "Stable",
    "Sum",
    "TileEvaluator",
    "UserKernel",
    "Wendland",
    "White",
    "check_positive_definite",
    "count_entries",
    "counting",
    "fold_white",
    "has_user_function",
    "kernel_from_json",
    "kernel_names",
    "kernel_text",
    "parse_kernel",
    "register_function",
]
