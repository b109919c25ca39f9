"""Imports from scikit-learn, which is an extra: said once, with a clear error where it is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
from scipy.sparse import issparse

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
    "TakesSparse",
    "available_if",
    "check_is_fitted",
    "check_random_state",
    "clone",
    "dense",
    "seed_of",
    "validate_data",
]


def validate_data(estimator: Any, X: Any, *values: Any, **how: Any) -> Any:
    """Inputs, and targets where there are some, as scikit-learn checks them; sparse matrices are made dense.

    Raises `InputError`, a ValueError, if an input is text, or a sparse matrix that does not fit in memory as a dense
    one; other errors are scikit-learn's own.
    """
    try:
        return checked_by_scikit_learn(estimator, dense(X, "X"), *(dense(value, "y") for value in values), **how)
    except ValueError as error:
        if "could not convert" not in str(error) and "Unable to parse string" not in str(error):
            raise
        raise InputError(
            f"X holds text where a number belongs ({error}). Encode such columns first, as with scikit-learn's "
            "OneHotEncoder in a pipeline, or leave them out; `dkgp ingest` encodes them for the commands"
        ) from error


class TakesSparse:
    """Mixin, the first base of an estimator that checks its inputs by `validate_data`."""

    def __sklearn_tags__(self) -> Any:
        """Sparse inputs are taken, and made dense."""
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = True
        return tags


def dense(values: Any, name: str) -> Any:
    """A scipy sparse matrix as an array of float64; other values as they are.

    Kernels of sparse rows have no zeros to skip. Transformers such as `OneHotEncoder` return sparse matrices on their
    own account, so that a pipeline has no place to ask for a dense one.

    Raises `InputError`: the array takes more than half of the free memory.
    """
    if not issparse(values):
        return values
    free, needed = int(psutil.virtual_memory().available), 8 * int(np.prod(values.shape, dtype=object))
    if needed > free // 2:
        raise InputError(
            f"{name} is a sparse matrix of shape {values.shape}; as a dense one it takes {needed / 2**30:.3g} GiB, "
            f"more than half of the {free / 2**30:.3g} GiB of free memory. Select features (SelectKBest), project them "
            "(TruncatedSVD), or write a dataset store by `dkgp ingest` and pass its path"
        )
    return values.astype(np.float64).toarray()


def seed_of(random_state: Any) -> int:
    """A whole number for dkgp's seeded draws from what scikit-learn calls a random state."""
    if isinstance(random_state, int):
        return random_state
    return int(check_random_state(random_state).randint(2**31 - 1))
