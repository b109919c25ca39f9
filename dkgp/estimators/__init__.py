"""Estimators on scikit-learn's conventions, without numerics of their own; they need the extra `sklearn`."""

# Hangs on dkgp/models/exact.py.

from __future__ import annotations

from dkgp.estimators.classification.exact import LSSVC
from dkgp.estimators.classification.fixed_size import FixedSizeLSSVC
from dkgp.estimators.classification.gaussian_process import GPClassifier
from dkgp.estimators.classification.logistic import KernelLogisticClassifier
from dkgp.estimators.drop_in.classifier import GaussianProcessClassifier
from dkgp.estimators.drop_in.regressor import GaussianProcessRegressor
from dkgp.estimators.outputs import PredictionBounds
from dkgp.estimators.pursuit import ConjugateDirectionsPursuit
from dkgp.estimators.regressor import GPRegressor
from dkgp.estimators.sparse import OverconfidenceWarning, SparseGPRegressor

__all__ = [
    "LSSVC",
    "ConjugateDirectionsPursuit",
    "FixedSizeLSSVC",
    "GPClassifier",
    "GPRegressor",
    "GaussianProcessClassifier",
    "GaussianProcessRegressor",
    "KernelLogisticClassifier",
    "OverconfidenceWarning",
    "PredictionBounds",
    "SparseGPRegressor",
]
