"""Targets before they are fitted: gaps split them into groups, and a regressor's mean is taken off.

Targets that are known of the same samples are a group, and are fitted together on these samples. A missing entry of a
target is an observation with infinite noise: its coefficient is zero, and the others are those of the samples that are
there. So each group is an exact Gaussian process of its own samples, which is solved for its targets together, and its
proofs hold.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from dkgp.data import Dataset
from dkgp.data.types import FloatArray, quoted
from dkgp.errors import InputError
from dkgp.estimators.inputs import is_dask, is_plain, numbers_of, numeric_samples, take_rows
from dkgp.estimators.outputs import PredictionBounds, framed
from dkgp.estimators.scikit_learn import clone
from dkgp.estimators.training_set import default_targets, target_names_of
from dkgp.models.mean_option import MEAN_VALUES
from dkgp.models.rounding import shifted_bound
from dkgp.models.trend import CENTRED, Drift

logger = logging.getLogger("dkgp.estimators")

Method = TypeVar("Method", bound=Callable[..., Any])
# A variance, and so a standardisation, needs two.
LEAST_SAMPLES = 2


@dataclass(frozen=True, eq=False)
class Group:
    """Targets, by their columns, and the samples that all of them are known of, by their rows."""

    columns: tuple[int, ...]
    rows: NDArray[np.intp]


def groups_of(y: Any, noise: Any = None) -> list[Group] | None:
    """Targets (n, p) by the samples that they are known of, in the order of each group's first; None without gaps.

    Where `noise` has a column for each target, each is a group of its own.

    Raises `InputError`: a target of fewer than two samples, a sample of no target, noise of another shape.
    """
    if y is None or getattr(y, "ndim", 0) != 2 or y.shape[1] < 2:
        return None
    values = _numbers(y)
    if values is None:
        return None
    known, by_target = ~np.isnan(values), np.ndim(noise) == 2
    if known.all() and not by_target:
        return None
    if by_target and np.shape(noise) != values.shape:
        raise InputError(
            f"sample_noise has shape {np.shape(noise)}; expected {values.shape}, as y, or one value per sample"
        )
    counts, names = known.sum(axis=0), names_of(y)
    if (counts < LEAST_SAMPLES).any():
        column = int(np.argmax(counts < LEAST_SAMPLES))
        raise InputError(
            f"the target '{names[column]}' is known of {counts[column]} samples; a target needs {LEAST_SAMPLES} at "
            "least. Leave it out"
        )
    if not known.any(axis=1).all():
        lacking = np.flatnonzero(~known.any(axis=1))
        raise InputError(
            f"sample {lacking[0]} has no target at all, and so have {len(lacking)} in all; leave such samples out, as "
            "in y[~np.isnan(y).all(axis=1)]"
        )
    patterns: dict[bytes, list[int]] = {}
    for column in range(values.shape[1]):
        key = b"%d" % column if by_target else known[:, column].tobytes()
        patterns.setdefault(key, []).append(column)
    return [Group(tuple(columns), np.flatnonzero(known[:, columns[0]])) for columns in patterns.values()]


def fits_groups(fit: Method) -> Method:
    """Decorate `fit`: targets with gaps are fitted group by group."""

    @wraps(fit)
    def fitted(self: Any, X: Any, y: Any = None, sample_noise: Any = None, sample_weight: Any = None) -> Any:
        X, y = numeric_samples(X, y, sample_noise=sample_noise, sample_weight=sample_weight)
        groups = groups_of(y, sample_noise)
        parts = None
        if groups is not None:
            _require_rows(X, len(y))
            if sample_noise is not None and np.ndim(sample_noise) != 2:
                raise InputError(
                    "sample_noise is in the units of one target, and there are several; give (n, p), a column for each"
                )
            parts = GroupedTargets.fitted(self, groups, (X, y), (sample_noise, sample_weight))
        if parts is not None or "_grouped" in vars(self):
            for name in [name for name in vars(self) if name.endswith("_") or name in ("_fitted", "_grouped")]:
                delattr(self, name)
        if parts is None:
            return fit(self, X, y, sample_noise, sample_weight)
        parts.show(self)
        return self

    return cast(Method, fitted)


def of_groups(method: Method) -> Method:
    """Decorate a method of an estimator: one that was fitted group by group answers by its groups."""

    @wraps(method)
    def dispatched(self: Any, *arguments: Any, **options: Any) -> Any:
        grouped = vars(self).get("_grouped")
        if grouped is None:
            return method(self, *arguments, **options)
        if method.__name__ in ("update", "save"):
            return getattr(grouped, method.__name__)(self, *arguments, **options)
        return grouped.joined(method.__name__, *arguments, **options)

    return cast(Method, dispatched)


@dataclass(frozen=True, eq=False)
class GroupedTargets:
    """The estimators of groups of targets, as one of all p targets.

    `names`: of the targets, (p,). `columns`: those of each part's.
    """

    names: tuple[str, ...]
    columns: tuple[tuple[int, ...], ...]
    parts: tuple[Any, ...]

    @classmethod
    def fitted(
        cls, estimator: Any, groups: list[Group], samples: tuple[Any, Any], noise: tuple[Any, Any]
    ) -> GroupedTargets:
        """Fit a copy of an estimator for each group of targets of samples X, y with known noise or weights."""
        (X, y), (sample_noise, sample_weight) = samples, noise
        names, parts = names_of(y), []
        for group in groups:
            together = ", ".join(names[column] for column in group.columns)
            logger.info(
                "%d of %d targets share %d of %d samples: %s",
                *(len(group.columns), len(names), len(group.rows), len(y), together),
            )
            options = _noise_of(group, sample_noise=sample_noise, sample_weight=sample_weight)
            parts.append(clone(estimator).fit(take_rows(X, group.rows), _targets(y, group), **options))
        return cls(names, tuple(group.columns for group in groups), tuple(parts))

    def show(self, estimator: Any) -> None:
        """Set the attributes that scikit-learn and users read."""
        estimator._grouped = self
        estimator.parts_ = self.parts
        estimator.groups_ = tuple(tuple(self.names[column] for column in columns) for columns in self.columns)
        estimator.target_names_ = self.names
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.parts[0], name):
                setattr(estimator, name, getattr(self.parts[0], name))

    def joined(self, method: str, X: Any, *arguments: Any, **options: Any) -> Any:
        """Return the results of a method of all parts, target by target; draws of different groups are independent."""
        if method != "predict_gradients":
            _require_joinable(X)
        return self._joined([getattr(part, method)(X, *arguments, **options) for part in self.parts])

    def update(self, estimator: Any, X: Any, y: Any, sample_noise: Any = None, sample_weight: Any = None) -> Any:
        """Add samples to each part; `InputError` if a new sample has some targets of a group and lacks others."""
        X, y = numeric_samples(X, y, sample_noise=sample_noise, sample_weight=sample_weight)
        values = _numbers(y)
        if values is None or values.shape != (len(y), len(self.names)):
            expected = np.shape(X)[0], len(self.names)
            raise InputError(f"y has shape {np.shape(y)}; expected {expected}, numbers or NaN")
        _require_rows(X, len(y))
        known, groups = ~np.isnan(values), []
        for columns in self.columns:
            of_group = known[:, list(columns)]
            partly = of_group.any(axis=1) & ~of_group.all(axis=1)
            if partly.any():
                names = ", ".join(self.names[column] for column in columns)
                raise InputError(
                    f"sample {int(np.argmax(partly))} has some of the targets {names}, which were fitted together; "
                    "give all of them or none, or fit again with all samples"
                )
            groups.append(Group(columns, np.flatnonzero(of_group.all(axis=1))))
        for part, group in zip(self.parts, groups, strict=True):
            if len(group.rows):
                options = _noise_of(group, sample_noise=sample_noise, sample_weight=sample_weight)
                part.update(take_rows(X, group.rows), _targets(y, group), **options)
        return estimator

    def save(self, _: Any, url: Any, **options: Any) -> None:
        """Refuse: a store holds one model; `InputError`."""
        raise InputError(
            f"these targets have gaps and are {len(self.parts)} models; a store holds one. Save each of parts_, whose "
            "targets groups_ names, or pickle the estimator"
        )

    def _joined(self, results: list[Any]) -> Any:
        """Join the parts' results in the order of the targets."""
        first = results[0]
        if first is None:
            return None
        if isinstance(first, tuple):
            joined = [self._joined(list(fields)) for fields in zip(*results, strict=True)]
            return type(first)(*joined) if hasattr(first, "_fields") else tuple(joined)
        order = np.argsort(np.concatenate([np.array(columns) for columns in self.columns]))
        if is_dask(first):
            import dask.array

            return dask.array.concatenate(results, axis=1)[:, order].rechunk({1: -1})
        values = np.concatenate([np.asarray(result) for result in results], axis=1)[:, order]
        return framed(values, first.index, "", self.names) if hasattr(first, "index") else values


def names_of(y: Any) -> tuple[str, ...]:
    """Names of several targets: their own, where they have texts, or y0, y1, ..."""
    return target_names_of(y, ()) or default_targets(y)


def _numbers(y: Any) -> NDArray[np.float64] | None:
    """Targets as numbers, in memory; None if they are not numbers, which is refused later."""
    try:
        return numbers_of(y, "y")
    except (TypeError, ValueError):
        return None


def _targets(y: Any, group: Group) -> Any:
    """Targets of a group's samples, (m, columns)."""
    columns = list(group.columns)
    if hasattr(y, "iloc"):
        return y.iloc[group.rows, columns]
    return numbers_of(y, "y")[group.rows][:, columns]


def _noise_of(group: Group, **by_sample: Any) -> dict[str, Any]:
    """Known noise and weights of a group's samples, those that are given; of noise by target the group's column."""
    arrays = {name: numbers_of(values, name) for name, values in by_sample.items() if values is not None}
    return {
        name: array[group.rows] if array.ndim == 1 else array[group.rows, group.columns[0]]
        for name, array in arrays.items()
    }


def _require_rows(X: Any, n: int) -> None:
    """Refuse inputs that cannot be selected by rows; `InputError`."""
    if not (is_plain(X) or (is_dask(X) and hasattr(X, "blocks"))):
        raise InputError(
            f"targets with gaps, or with noise of their own, take arrays or DataFrames for X; got {type(X).__name__}. "
            "Fit them one by one, each without the samples that lack it"
        )
    if np.shape(X)[0] != n:
        raise InputError(f"X has {np.shape(X)[0]} samples, and y {n}; expected as many")


def _require_joinable(X: Any) -> None:
    if not (is_plain(X) or (is_dask(X) and hasattr(X, "blocks"))):
        raise InputError(
            f"an estimator of targets with gaps predicts at arrays and DataFrames; got {type(X).__name__}. Predict "
            "with each of parts_"
        )


@dataclass(frozen=True)
class EstimatorMean:
    """The mean of a fit.

    Attributes
    ----------
    drift : Drift
        Mean of the Gaussian process.
    regressor : regressor, optional
        Fitted on the samples, on whose residuals the Gaussian process is; its own uncertainty is in no variance.
    """

    drift: Drift = CENTRED
    regressor: Any = None

    @classmethod
    def of(cls, mean: Any, X: Any, y: Any) -> EstimatorMean:
        """The mean that the parameter `mean` stands for, a regressor fitted on these samples.

        Raises `InputError`: something else, or samples that a regressor cannot be shown.
        """
        drift = _parsed(mean)
        if not _is_regressor(mean):
            return cls(drift)
        _require_plain(X)
        return cls(drift, clone(mean).fit(X, y))

    def count(self, dataset: Dataset) -> int:
        """Coefficients that the Gaussian process has for each target."""
        return self.drift.count(dataset.n_features)

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
        """Refuse a regressor, which dkgp does not know, in a place that cannot hold it; `InputError`."""
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


def covariates_of(columns: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of columns that are given by name or by index, as in `covariates`; `InputError` for others."""
    if not isinstance(columns, list | tuple | np.ndarray):
        raise InputError(f"covariates= takes a sequence of names or indices of features; got {columns!r}")
    taken: list[str] = []
    for column in columns:
        if isinstance(column, int | np.integer) and not isinstance(column, bool) and -len(names) <= column < len(names):
            taken.append(names[int(column)])
        elif isinstance(column, str) and column in names:
            taken.append(column)
        else:
            raise InputError(f"covariates= takes names or indices of features; got {column!r} of {quoted(names)}")
    return tuple(taken)


def drift_of(estimator: Any) -> Drift:
    """Return the mean of an estimator's Gaussian process itself, which is centred beside a regressor."""
    return _parsed(getattr(estimator, "mean", CENTRED))


def _parsed(mean: Any) -> Drift:
    try:
        return CENTRED if _is_regressor(mean) else Drift.parse(mean)
    except InputError:
        raise InputError(f"{_EXPECTED}; got {mean!r}") from None


def _is_regressor(mean: Any) -> bool:
    return hasattr(mean, "fit") and hasattr(mean, "predict")


def require_centred(estimator: Any, what: str) -> None:
    """Refuse a mean other than the average beside values that are found about the average; `InputError`."""
    if drift_of(estimator) != CENTRED:
        raise InputError(
            f"{what} are found about a centred mean, and mean={estimator.mean!r} is another; leave one of them out"
        )


def _shifted(bounds: PredictionBounds, mean: Any) -> PredictionBounds:
    error = bounds.mean_error
    widened = shifted_bound(np.asarray(error, dtype=np.float64), np.asarray(mean, dtype=np.float64))
    if hasattr(error, "index"):  # a Series or DataFrame keeps its labels
        return bounds._replace(
            mean_error=framed(widened, error.index, getattr(error, "name", ""), getattr(error, "columns", None))
        )
    return bounds._replace(mean_error=widened)


_EXPECTED = f"mean= is one of {MEAN_VALUES}, or a regressor of scikit-learn's"


def _require_plain(X: Any) -> None:
    if not is_plain(X):
        raise InputError(
            'a regressor as mean= takes arrays and DataFrames in memory; take mean="linear" for dask arrays, '
            "xarray's objects and stores"
        )
