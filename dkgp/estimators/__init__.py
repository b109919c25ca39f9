"""Estimators on scikit-learn's conventions, without numerics of their own; they need the extra `sklearn`."""

# Hangs on dkgp/models/exact.py.

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dkgp.estimators.drop_in.classifier import GaussianProcessClassifier
    from dkgp.estimators.drop_in.regressor import GaussianProcessRegressor
    from dkgp.estimators.gradients import (
        Acquisition,
        PredictionGradients,
        expected_improvement,
        log_expected_improvement,
        upper_confidence_bound,
    )
    from dkgp.estimators.least_squares import LSSVC, FixedSizeLSSVC
    from dkgp.estimators.likelihoods import GPClassifier, KernelLogisticClassifier
    from dkgp.estimators.outputs import PredictionBounds
    from dkgp.estimators.pursuit import ConjugateDirectionsPursuit
    from dkgp.estimators.regressor import GPRegressor
    from dkgp.estimators.sparse import OverconfidenceWarning, SparseGPRegressor

__all__ = [
    "LSSVC",
    "Acquisition",
    "ConjugateDirectionsPursuit",
    "FixedSizeLSSVC",
    "GPClassifier",
    "GPRegressor",
    "GaussianProcessClassifier",
    "GaussianProcessRegressor",
    "KernelLogisticClassifier",
    "OverconfidenceWarning",
    "PredictionBounds",
    "PredictionGradients",
    "SparseGPRegressor",
    "expected_improvement",
    "log_expected_improvement",
    "upper_confidence_bound",
]

# The module of each name: one is loaded without the imports of the others.
_MODULES = {
    "LSSVC": "least_squares",
    "Acquisition": "gradients",
    "ConjugateDirectionsPursuit": "pursuit",
    "FixedSizeLSSVC": "least_squares",
    "GPClassifier": "likelihoods",
    "GPRegressor": "regressor",
    "GaussianProcessClassifier": "drop_in.classifier",
    "GaussianProcessRegressor": "drop_in.regressor",
    "KernelLogisticClassifier": "likelihoods",
    "OverconfidenceWarning": "sparse",
    "PredictionBounds": "outputs",
    "PredictionGradients": "gradients",
    "SparseGPRegressor": "sparse",
    "expected_improvement": "gradients",
    "log_expected_improvement": "gradients",
    "upper_confidence_bound": "gradients",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'dkgp.estimators' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"dkgp.estimators.{_MODULES[name]}"), name)
