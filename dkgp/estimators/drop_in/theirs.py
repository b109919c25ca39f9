"""Imports from scikit-learn that this room alone needs, and that other estimators are loaded without."""

from __future__ import annotations

from dkgp.errors import MissingExtraError

try:
    from sklearn.gaussian_process import kernels
    from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
except ImportError as error:
    raise MissingExtraError("scikit-learn", "sklearn", "an estimator such as GaussianProcessRegressor") from error

__all__ = ["OneVsOneClassifier", "OneVsRestClassifier", "kernels"]
