"""Imports from scikit-learn, which is an extra: said once, with a clear error where it is missing."""

from __future__ import annotations

from typing import Any

from dkgp.errors import MissingExtraError

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise MissingExtraError("scikit-learn", "sklearn", "an estimator such as GPRegressor") from error

__all__ = [
    "BaseEstimator",
    "ClassifierMixin",
    "ConvergenceWarning",
    "RegressorMixin",
    "available_if",
    "check_is_fitted",
    "seed_of",
    "validate_data",
]


def seed_of(random_state: Any) -> int:
    """A whole number for dkgp's seeded draws from what scikit-learn calls a random state."""
    from sklearn.utils import check_random_state

    if isinstance(random_state, int):
        return random_state
    return int(check_random_state(random_state).randint(2**31 - 1))
