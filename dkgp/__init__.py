"""Gaussian process regression, classification and kriging for tables that are too large for memory.

Estimators: `dkgp.GPRegressor`, `dkgp.SparseGPRegressor`, `dkgp.LSSVC`, `dkgp.FixedSizeLSSVC`,
`dkgp.KernelLogisticClassifier`, `dkgp.GPClassifier`, `dkgp.ConjugateDirectionsPursuit`, and replacements for
scikit-learn's `dkgp.GaussianProcessRegressor` and `dkgp.GaussianProcessClassifier`. The packages below them, such as
`dkgp.solvers`, `dkgp.kernels` and `dkgp.data`, are attributes too. All are loaded on first use.
"""

from __future__ import annotations

import gc
import importlib
from types import ModuleType
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

__version__ = "0.2.0"

_LAYERS = ("cluster", "data", "errors", "estimators", "kernels", "kriging", "models", "operators", "solvers")
_ESTIMATORS = tuple(sorted({*__all__} - {"__version__"}))


def __getattr__(name: str) -> Any:
    if name in _LAYERS:
        return _imported(f"dkgp.{name}")
    if name in _ESTIMATORS:
        return getattr(_imported("dkgp.estimators", name), name)
    known = ", ".join((*_ESTIMATORS, *_LAYERS))
    raise AttributeError(f"module 'dkgp' has no attribute {name!r}; it has {known}")


def _imported(module: str, *attributes: str) -> ModuleType:
    """Import a module, and attributes that it loads on first use.

    Without collections of garbage meanwhile: they go over all that imports make, which stays, and take a sixth as long
    as these do.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        imported = importlib.import_module(module)
        for attribute in attributes:
            getattr(imported, attribute)
        return imported
    finally:
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAYERS, *_ESTIMATORS})
