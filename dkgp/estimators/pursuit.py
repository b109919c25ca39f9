"""`ConjugateDirectionsPursuit`: sparse linear models on scikit-learn's conventions, from rows that need not fit."""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Dataset
from dkgp.data.sources.labelled import is_labelled, label, labelled_targets
from dkgp.errors import InputError
from dkgp.estimators.base import TargetsRegressor
from dkgp.estimators.fitted import Workspace
from dkgp.estimators.inputs import computed, is_dask, is_plain, numeric, numeric_samples, read_inputs, read_samples
from dkgp.estimators.outputs import frame_index, framed, map_rows
from dkgp.estimators.parameters import (
    Client,
    Count,
    CountOrNone,
    Place,
    RandomState,
    check_parameters,
    check_value,
)
from dkgp.estimators.scikit_learn import ConvergenceWarning, check_is_fitted, seed_of, validate_data
from dkgp.estimators.settings import executor_for
from dkgp.estimators.training_set import (
    client_for,
    feature_names_of,
    kept_samples,
    note_features,
    plain_inputs,
    reads_memory,
    target_names_of,
)
from dkgp.operators import ArrayInputs
from dkgp.registry import Option
from dkgp.solvers.pursuit.engine import PursuitPath, PursuitSettings, pursue
from dkgp.solvers.pursuit.systems import RowSystem

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class _RawRows:
    """A data set's raw inputs, constant columns included."""

    dataset: Dataset

    @property
    def n_samples(self) -> int:
        return self.dataset.n_samples

    @property
    def n_features(self) -> int:
        return len(self.dataset.raw_feature_names)

    def inputs(self, start: int, stop: int) -> FloatArray:
        return self.dataset.raw_inputs(start, stop)


@dataclass(eq=False, repr=False)
class ConjugateDirectionsPursuit(TargetsRegressor):
    """Linear regression with few nonzero coefficients, by sparse conjugate directions pursuit.

    The choices are those of scikit-learn's `OrthogonalMatchingPursuit`, which has the same parameters; here X may be a
    dask array, an xarray Dataset or a dataset store that does not fit in memory: X'X is never formed, each choice is
    one pass over the rows. The path over all cardinalities comes with the fit.

    Parameters
    ----------
    n_nonzero_coefs : int, optional
        Nonzero coefficients at most; a tenth of the features by default, one at least. With `tol` it is a limit.
    tol : float, optional
        Stop where the squared residual of a target is at most this; with `joint`, that of all together.
    candidates : int, optional
        rho: each choice is the best of its own random draw of so many features (SCDPP); of all by default. The paper's
        value is 59.
    per_round : int, default 1
        Choices for each pass, by the same gradient.
    choice : {"gradient", "refit", "single"}, default "gradient"
        Sizes that the best feature is chosen by: its correlation with the residual; "refit": the fall of the squared
        residual, orthogonal least squares; "single": the same with the other coefficients held.
    fit_intercept : bool, default True
        Whether features and targets are centred first.
    joint : bool, default False
        Whether several targets share one choice of features.
    client : distributed.Client, optional
        Where the rows are read.
    store : str, optional
        Folder or URL for rows of lazy inputs; a temporary folder by default.
    random_state : int, RandomState or None, default 0
        Of draws.

    Attributes
    ----------
    coef_ : (d,) or (p, d) ndarray
    intercept_ : float or (p,) ndarray
        0.0 without one.
    n_iter_ : int or (p,) ndarray
        Nonzero coefficients, or those of each target.
    n_nonzero_coefs_ : int or None
        The limit that was used; None where `tol` alone counts.
    paths_ : list of dkgp.solvers.PursuitPath
        One for each target, or one for all with `joint`; of centred features. `coef_at` reads them.
    n_features_in_, feature_names_in_

    Examples
    --------
    >>> X = np.random.default_rng(0).standard_normal((200, 30))
    >>> y = 3.0 * X[:, 4] - 2.0 * X[:, 17]
    >>> model = ConjugateDirectionsPursuit(n_nonzero_coefs=2).fit(X, y)
    >>> np.flatnonzero(model.coef_).tolist()
    [4, 17]
    >>> np.flatnonzero(model.coef_at(1)).tolist()
    [4]
    """

    n_nonzero_coefs: CountOrNone = None
    tol: Annotated[float | None, Option(least=0)] = None
    _: KW_ONLY
    candidates: CountOrNone = None
    per_round: Count = 1
    choice: Literal["gradient", "refit", "single"] = "gradient"
    fit_intercept: bool = True
    joint: bool = False
    client: Client = None
    store: Place = None
    random_state: RandomState = 0

    # ------------------------------------------------------------------------------------------------------- fitting

    def fit(self, X: Any, y: Any = None) -> Self:
        """Choose features one after the other, and refit all that are chosen each time.

        Parameters
        ----------
        X : (n, d) array_like, dask array, DataFrame, xarray object, or address of a dataset store
            A store brings its own targets.
        y : (n,) or (n, p) array_like or dask array, optional

        Returns
        -------
        ConjugateDirectionsPursuit
            This one.

        Raises
        ------
        InputError
            A `ValueError`: data or settings that cannot be worked with.
        """
        check_parameters(self)
        settings = self._settings()
        source, targets, several = self._samples(X, y)
        limit = self._limit(source.n_features)
        with executor_for(self.client, source) as executor:
            self._pursue(source, targets, settings, limit, executor)
        self._several = several
        self._set_coefficients()
        short = [path for path in self.paths_ if path.reason.rule != "residual"]
        if short and self.tol is not None:
            most = max(len(path) for path in short)
            more = any(path.reason.rule == "size" and not path.reason.converged for path in short)
            advice = "allow more `n_nonzero_coefs`" if more else "the other features do not bring it nearer"
            warnings.warn(
                f"`tol` = {self.tol:g} is not reached by {most} coefficients; {advice}",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _settings(self) -> PursuitSettings:
        return PursuitSettings(
            candidates=self.candidates,
            per_round=self.per_round,
            score=self.choice,
            residual=self.tol,
            seed=seed_of(self.random_state),
        )

    def _limit(self, features: int) -> int | None:
        """Largest number of nonzero coefficients."""
        limit: Any = self.n_nonzero_coefs
        if limit is None:
            limit = None if self.tol is not None else max(1, features // 10)
        elif limit > features:
            raise InputError(f"n_nonzero_coefs= is 1 to {features}, the number of features; got {limit!r}")
        self.n_nonzero_coefs_ = limit
        return None if limit is None else int(limit)

    def _samples(self, X: Any, y: Any) -> tuple[Any, FloatArray, bool]:
        """Rows, targets (n, p), and whether coefficients have a dimension for targets; sets attributes."""
        X, y = numeric_samples(X, y)
        if is_plain(X):
            labelled_y = y
            if is_labelled(y):
                y = labelled_targets(y, None)[0]
            X, y = validate_data(self, X, computed(y), multi_output=True, y_numeric=True, dtype=np.float64)
            names = target_names_of(labelled_y, feature_names_of(self) or ())
            inputs, targets, several, dataset = X, np.asarray(y, dtype=np.float64), np.ndim(y) > 1, None
        else:
            table = read_samples(X, y)
            width = len(table.names) if table.names is not None else table.inputs.shape[1]
            note_features(self, width, table.names)
            inputs, names, several, dataset = table.inputs, table.target_names, table.several_targets, table.dataset
            several = several or (dataset is None and np.ndim(table.targets) > 1)
            targets = numeric(table.targets, "y")
        if dataset is None and not is_dask(inputs) and reads_memory(client_for(self, inputs)):
            source: Any = ArrayInputs(np.asarray(inputs, dtype=np.float64))
            targets = np.asarray(computed(targets), dtype=np.float64)
            if not np.isfinite(targets).all():
                raise InputError("y must be finite; leave out samples whose targets are not numbers")
        else:
            dataset = self._stored(inputs, targets, names) if dataset is None else dataset
            source, targets = _RawRows(dataset), dataset.all_targets(standardised=False)
        if len(targets) != source.n_samples:
            raise InputError(f"X has {source.n_samples} samples and y {len(targets)}; expected as many in both")
        self._target_names = names
        return source, targets.reshape(source.n_samples, -1), bool(several)

    def _stored(self, inputs: Any, targets: Any, names: Any) -> Dataset:
        """Write the rows into a store that workers read; a temporary one is removed with this object."""
        width, several = inputs.shape[1], np.ndim(targets) > 1
        columns: dict[str, Any] = {
            "feature_names": feature_names_of(self) or tuple(f"x{column}" for column in range(width)),
            "target_names": names or (tuple(f"y{k}" for k in range(targets.shape[1])) if several else ("y",)),
        }
        workspace = Workspace(self.store)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of constant features, which are nothing to warn of here
            dataset = kept_samples(self, inputs, targets, workspace, columns)
        self._workspace = workspace  # until the fit is done
        return dataset

    def _pursue(
        self, source: Any, targets: FloatArray, settings: PursuitSettings, limit: int | None, executor: BlockExecutor
    ) -> None:
        settings = replace(settings, size=limit)
        self._shift = np.zeros(source.n_features)
        self._offset = np.zeros(targets.shape[1])
        system = RowSystem(source, executor)
        if self.fit_intercept:
            # From the first on: a constant target is met by the intercept to the bit.
            self._shift, self._offset = system.means(), targets[0] + (targets - targets[0]).mean(axis=0)
            system.close()
            if isinstance(source, ArrayInputs):
                system = RowSystem(ArrayInputs(source.inputs(0, source.n_samples) - self._shift), executor)
            else:
                system = RowSystem(source, executor, shift=self._shift)
        centred = targets - self._offset
        columns = [centred] if self.joint else [centred[:, [target]] for target in range(centred.shape[1])]
        try:
            self.paths_: list[PursuitPath] = [pursue(system, column, settings) for column in columns]
        finally:
            system.close()
            self.__dict__.pop("_workspace", None)

    def _set_coefficients(self) -> None:
        coefficients = self._coefficients(None)
        intercepts = self._offset - coefficients @ self._shift
        lengths = np.asarray([len(path) for path in self.paths_])
        if self.joint:
            lengths = np.repeat(lengths, len(coefficients))
        self.coef_ = coefficients if self._several else coefficients[0]
        self.intercept_ = intercepts if self._several and self.fit_intercept else float(intercepts[0])
        self.n_iter_ = lengths if self._several else int(lengths[0])

    def _coefficients(self, k: int | None) -> FloatArray:
        """Coefficients (p, d) of cardinality k, or of the end of the path."""
        return np.concatenate([path.solution(None if k is None else min(k, len(path))).T for path in self.paths_])

    def coef_at(self, k: int) -> FloatArray:
        """Coefficients of the path's cardinality k, its last where it is shorter: (d,) or (p, d); nothing is refitted.

        The intercept of them is `y.mean() - coef @ X.mean(axis=0)`.
        """
        check_is_fitted(self)
        check_value("k", Annotated[int, Option(least=0)], k)
        result = self._coefficients(k)
        return result if self._several else np.asarray(result[0])

    # --------------------------------------------------------------------------------------------------- predictions

    def predict(self, X: Any) -> Any:
        """X coef_ + intercept_, lazily where X is lazy: (r,) or (r, p)."""
        check_is_fitted(self)
        names = self._target_names or tuple(f"y{target}" for target in range(len(self._offset)))
        if is_plain(X):
            values, index = plain_inputs(self, X) @ self.coef_.T + self.intercept_, frame_index(X)
            return values if index is None else framed(values, index, names[0], names)
        table = read_inputs(X, feature_names_of(self))
        if table.inputs.ndim != 2 or table.inputs.shape[1] != self.n_features_in_:
            raise InputError(f"X has shape {table.inputs.shape}; expected (n, {self.n_features_in_})")
        if table.frame is not None:
            linear = partial(_linear, np.atleast_2d(self.coef_), self.intercept_)
            frame = map_rows(table.frame, linear, names[: len(self._offset)])
            return frame if self._several else frame[names[0]]
        result = table.inputs @ self.coef_.T + self.intercept_
        if table.labels is None:
            return result
        across = {"target": list(names)} if self._several else None
        return label(result, table.labels, "target" if self._several else names[0], across)


def _linear(coefficients: FloatArray, intercepts: float | FloatArray, rows: FloatArray) -> FloatArray:
    return np.asarray(rows @ coefficients.T + intercepts)
