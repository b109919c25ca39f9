"""The mean of an estimator: a kind that is found under the kernel, or a regressor of scikit-learn's fitted first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.data import Dataset
from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.estimators.outputs.frames import framed
from dkgp.estimators.outputs.outputs import PredictionBounds
from dkgp.estimators.scikit_learn import clone
from dkgp.estimators.tables import is_plain
from dkgp.models.rounding import shifted_bound
from dkgp.models.trend.columns import CENTRED, MEAN_KINDS, MeanKind, count_of


@dataclass(frozen=True)
class EstimatorMean:
    """The mean of a fit.

    Attributes
    ----------
    kind : {"centred", "constant", "linear"}
        Of the Gaussian process.
    regressor : regressor, optional
        Fitted on the samples, on whose residuals the Gaussian process is; its own uncertainty is in no variance.
    """

    kind: MeanKind = CENTRED
    regressor: Any = None

    @classmethod
    def of(cls, mean: Any, X: Any, y: Any) -> EstimatorMean:
        """The mean that the parameter `mean` stands for, a regressor fitted on these samples.

        Raises `InputError`: something else, or samples that a regressor cannot be shown.
        """
        if not isinstance(mean, str):
            if not (hasattr(mean, "fit") and hasattr(mean, "predict")):
                raise InputError(f"{_EXPECTED}; got {mean!r}")
            _require_plain(X)
            return cls(CENTRED, clone(mean).fit(X, y))
        return cls(kind_of(mean))

    def count(self, dataset: Dataset) -> int:
        """Coefficients that the Gaussian process has for each target."""
        return count_of(self.kind, dataset.n_features)

    def taken_off(self, X: Any, y: Any) -> Any:
        """Targets without the regressor's predictions, in their own form."""
        if self.regressor is None:
            return y
        _require_plain(X)
        mean = np.asarray(self.regressor.predict(X), dtype=np.float64)
        if mean.shape != np.shape(y):
            raise InputError(f"the regressor of mean= predicts {mean.shape} for targets of shape {np.shape(y)}")
        return y - mean if hasattr(y, "index") else np.asarray(y, dtype=np.float64) - mean

    def added(self, X: Any, predicted: Any) -> Any:
        """Return predictions, the mean alone or first in a tuple, with the regressor's predictions added to the mean.

        Bounds on the mean's error include the rounding of the sum.
        """
        if self.regressor is None:
            return predicted
        _require_plain(X)
        mean = np.asarray(self.regressor.predict(X), dtype=np.float64)
        if not isinstance(predicted, tuple):
            return predicted + mean
        shifted, *others = predicted[0] + mean, *predicted[1:]
        return (shifted, *(_shifted(item, shifted) if isinstance(item, PredictionBounds) else item for item in others))

    def added_to_draws(self, X: Any, values: FloatArray) -> FloatArray:
        """Functions' values (r, count) or (r, p, count), with the regressor's predictions added."""
        if self.regressor is None:
            return values
        return np.asarray(np.moveaxis(self.added(X, np.moveaxis(values, -1, 0)), 0, -1))

    def require_none(self, what: str) -> None:
        """Refuse what a regressor, which dkgp does not know, cannot follow into; `InputError`."""
        if self.regressor is not None:
            raise InputError(
                f"{what} cannot hold the regressor of mean=, {type(self.regressor).__name__}. Pickle the estimator "
                'instead, or take mean="linear"'
            )

    def require_differentiable(self) -> None:
        """Refuse a regressor where derivatives are asked for; `InputError`."""
        if self.regressor is not None:
            raise InputError(
                f"nothing is known of the derivatives of the regressor of mean=, {type(self.regressor).__name__}; take "
                'mean="linear", or another of dkgp\'s own'
            )


def kind_of(mean: Any) -> MeanKind:
    """The kind of mean of the Gaussian process itself: centred under a regressor. `InputError` for another text."""
    if not isinstance(mean, str):
        return CENTRED
    for kind in MEAN_KINDS:
        if mean == kind:
            return kind
    raise InputError(f"{_EXPECTED}; got {mean!r}")


def require_centred(kind: MeanKind, what: str) -> None:
    """Refuse a mean with coefficients beside what is found without one; `InputError`."""
    if kind != CENTRED:
        raise InputError(
            f"{what} are found about a centred mean, and mean={kind!r} has coefficients of its own; leave one of them "
            "out"
        )


def _shifted(bounds: PredictionBounds, mean: Any) -> PredictionBounds:
    error = bounds.mean_error
    widened = shifted_bound(np.asarray(error, dtype=np.float64), np.asarray(mean, dtype=np.float64))
    if hasattr(error, "index"):  # a Series or DataFrame keeps its labels
        return bounds._replace(
            mean_error=framed(widened, error.index, getattr(error, "name", ""), getattr(error, "columns", None))
        )
    return bounds._replace(mean_error=widened)


_EXPECTED = f"mean= is one of {', '.join(map(repr, MEAN_KINDS))}, or a regressor of scikit-learn's"


def _require_plain(X: Any) -> None:
    if not is_plain(X):
        raise InputError(
            'a regressor as mean= takes arrays and DataFrames in memory; take mean="linear" for dask arrays, '
            "xarray's objects and stores"
        )
