"""Estimators on scikit-learn's conventions, without numerics of their own; they need the extra `sklearn`."""

from __future__ import annotations

from dkgp.estimators.outputs import PredictionBounds
from dkgp.estimators.regressor import GPRegressor

__all__ = ["GPRegressor", "PredictionBounds"]
