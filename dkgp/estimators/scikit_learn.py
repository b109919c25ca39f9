"""Imports from scikit-learn, which is an extra: said once, with a clear error where it is missing."""

from __future__ import annotations

from typing import Any

from dkgp.errors import InputError, MissingExtraError

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin, clone
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils import check_random_state
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_is_fitted
    from sklearn.utils.validation import validate_data as checked_by_scikit_learn
except ImportError as error:
    raise MissingExtraError("scikit-learn", "sklearn", "an estimator such as GPRegressor") from error

__all__ = [
    "BaseEstimator",
    "ClassifierMixin",
    "ConvergenceWarning",
    "MultiOutputMixin",
    "RegressorMixin",
    "available_if",
    "check_is_fitted",
    "check_random_state",
    "clone",
    "seed_of",
    "validate_data",
]


def validate_data(estimator: Any, X: Any, *values: Any, **how: Any) -> Any:
    """Inputs, and targets where there are some, as scikit-learn checks them; text is refused in words.

    `InputError`, a ValueError, where an input is text; else scikit-learn's own errors.
    """
    try:
        return checked_by_scikit_learn(estimator, X, *values, **how)
    except ValueError as error:
        if "could not convert" not in str(error) and "Unable to parse string" not in str(error):
            raise
        raise InputError(
            f"X holds text where a number belongs ({error}). Encode such columns first, as with scikit-learn's "
            "OneHotEncoder in a pipeline, or leave them out; `dkgp ingest` encodes them for the commands"
        ) from error


def seed_of(random_state: Any) -> int:
    """A whole number for dkgp's seeded draws from what scikit-learn calls a random state."""
    if isinstance(random_state, int):
        return random_state
    return int(check_random_state(random_state).randint(2**31 - 1))
