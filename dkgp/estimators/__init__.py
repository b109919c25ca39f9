"""Estimators on scikit-learn's conventions, without numerics of their own; they need the extra `sklearn`."""

from __future__ import annotations

from dkgp.estimators.outputs import PredictionBounds
from dkgp.estimators.regressor import GPRegressor
from dkgp.estimators.sparse import OverconfidenceWarning, SparseGPRegressor

__all__ = ["GPRegressor", "OverconfidenceWarning", "PredictionBounds", "SparseGPRegressor"]
