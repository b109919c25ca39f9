"""Exact Gaussian process regression by greedy block coordinate descent, out of core, on Dask.

`dkgp.GPRegressor`, `dkgp.SparseGPRegressor`, `dkgp.LSSVC`, `dkgp.FixedSizeLSSVC`, `dkgp.KernelLogisticClassifier`,
`dkgp.GPClassifier`, `dkgp.ConjugateDirectionsPursuit`, scikit-learn's `dkgp.GaussianProcessRegressor` and
`dkgp.GaussianProcessClassifier`, and the layers (`dkgp.solvers.solve`,
`dkgp.kernels.SquaredExponential`, `dkgp.data.open_dataset`) are attributes that are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dkgp.estimators import (
        LSSVC,
        ConjugateDirectionsPursuit,
        FixedSizeLSSVC,
        GaussianProcessClassifier,
        GaussianProcessRegressor,
        GPClassifier,
        GPRegressor,
        KernelLogisticClassifier,
        SparseGPRegressor,
    )

__all__ = [
    "LSSVC",
    "ConjugateDirectionsPursuit",
    "FixedSizeLSSVC",
    "GPClassifier",
    "GPRegressor",
    "GaussianProcessClassifier",
    "GaussianProcessRegressor",
    "KernelLogisticClassifier",
    "SparseGPRegressor",
    "__version__",
]

__version__ = "0.1.0"

_LAYERS = ("cluster", "data", "errors", "estimators", "kernels", "models", "operators", "solvers")
_ESTIMATORS = tuple(sorted({*__all__} - {"__version__"}))


def __getattr__(name: str) -> Any:
    if name in _LAYERS:
        return importlib.import_module(f"dkgp.{name}")
    if name in _ESTIMATORS:
        return getattr(importlib.import_module("dkgp.estimators"), name)
    known = ", ".join((*_ESTIMATORS, *_LAYERS))
    raise AttributeError(f"module 'dkgp' has no attribute {name!r}; it has {known}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAYERS, *_ESTIMATORS})
