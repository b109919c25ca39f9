"""Imports from scikit-learn, which is an extra: said once, with a clear error where it is missing."""

from __future__ import annotations

from numbers import Integral, Number
from typing import Any

import numpy as np

from dkgp.data.numbers import dense
from dkgp.errors import InputError, MissingExtraError
from dkgp.estimators.inputs import numeric
from dkgp.estimators.parameters import RandomState, check_value

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
    "TakesSparse",
    "available_if",
    "check_is_fitted",
    "check_random_state",
    "clone",
    "seed_of",
    "validate_data",
]


def validate_data(estimator: Any, X: Any, *values: Any, **how: Any) -> Any:
    """Check inputs, and targets where there are some, as scikit-learn does; sparse matrices are made dense.

    Inputs that have to be numbers (`dtype`), and targets (`y_numeric`), are read by `numeric` before: masked entries
    are NaN; dates, text and missing values are refused in words. Other errors are scikit-learn's own.
    """
    if _is_clean(estimator, X, values, **how):
        if how.get("reset", True):
            estimator.n_features_in_ = X.shape[1]
            vars(estimator).pop("feature_names_in_", None)
        return (X, *values) if values else X
    X, values = dense(X, "X"), tuple(dense(y, "y") for y in values)
    if how.get("dtype") is not None:
        X = numeric(X, "X")
    if how.get("y_numeric"):
        values = tuple(numeric(y, "y") for y in values)
    for y in values:
        if getattr(y, "ndim", None) == 0 or isinstance(y, Number):
            raise InputError(f"y is {y!r}; expected an array with a value for each sample")
    try:
        return checked_by_scikit_learn(estimator, X, *values, **how)
    except ValueError as error:
        first, _, more = str(error).partition("\n")
        if not (more and first.endswith("contains NaN.")):
            raise
        raise InputError(f"{first} Leave out the rows with missing values, or fill the gaps before") from None


def _is_clean(
    estimator: Any,
    X: Any,
    values: tuple[Any, ...],
    *,
    dtype: Any = None,
    reset: bool = True,
    ensure_min_samples: int = 1,
    **targets: bool,
) -> bool:
    """Return True for plain finite arrays, which scikit-learn would neither refuse nor convert.

    Inputs and targets are float64; labels, which are not `y_numeric`, are a column of any numbers.
    """
    if dtype is not np.float64 or not all(type(each) is np.ndarray for each in (X, *values)):
        return False
    if X.dtype != dtype or any(y.dtype != dtype and (targets or y.dtype.kind not in "biuf") for y in values):
        return False
    if X.ndim != 2 or X.shape[1] < 1 or len(X) < ensure_min_samples:
        return False
    if not reset and (
        X.shape[1] != getattr(estimator, "n_features_in_", None) or hasattr(estimator, "feature_names_in_")
    ):
        return False
    if values and (targets not in ({}, {"multi_output": True, "y_numeric": True}) or len(values) > 1):
        return False
    if any(y.ndim not in ((1, 2) if targets else (1,)) or len(y) != len(X) for y in values):
        return False
    return all(bool(np.isfinite(each).all()) for each in (X, *values))


class TakesSparse:
    """Mixin, the first base of an estimator that checks its inputs by `validate_data`."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = True
        return tags


def seed_of(random_state: Any) -> int:
    """Return a seed of dkgp's draws, a whole number, from a random state as scikit-learn defines it.

    Raises `InputError` for another object.
    """
    check_value("random_state", RandomState, random_state)
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
