"""`GPRegressor`: the exact Gaussian process on scikit-learn's conventions."""

from __future__ import annotations

import os
import warnings
from itertools import compress
from typing import Any, Literal, Self

import numpy as np

from dkgp.cluster.given_client import is_in_process
from dkgp.data import append_rows
from dkgp.data.sources.labelled import label
from dkgp.errors import InputError
from dkgp.estimators.fitted import FittedModel, Workspace
from dkgp.estimators.outputs import predictions, what_holds
from dkgp.estimators.scikit_learn import (
    BaseEstimator,
    ConvergenceWarning,
    RegressorMixin,
    check_is_fitted,
    seed_of,
)
from dkgp.estimators.settings import (
    about_fit,
    checked_solver,
    chosen_hyperparameters,
    executor_for,
    settings_of,
    solver_for,
    solver_for_update,
    stopping_of,
)
from dkgp.estimators.tables import Table, is_dask, is_plain, read_inputs
from dkgp.estimators.training_set import given_names, new_samples, plain_inputs, training_set, true_targets
from dkgp.kernels import Kernel, kernel_from_json
from dkgp.models import Hyperparameters
from dkgp.models.certificate import Certificate
from dkgp.models.exact import train
from dkgp.models.prediction.pathwise import PosteriorFunctions
from dkgp.models.prediction.predictor import standardised
from dkgp.models.update import update
from dkgp.models.variance.variances import VarianceSettings
from dkgp.solvers import Solver

__all__ = ["GPRegressor"]

# Draws of functions that an estimator keeps, so that they need not be solved for again at other points.
MOST_KEPT_DRAWS = 4


class GPRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """Exact Gaussian process regression.

    Inputs and targets are standardised inside, and features that are constant are left out; predictions come back in
    the targets' own units.

    Parameters
    ----------
    kernel : str, Kernel or Hyperparameters, default "rbf"
        An expression such as "rbf" or "matern32 + linear" (`dkgp.kernels.parse_kernel`), whose values are tuned; or a
        kernel of the standardised features, or the outcome of `dkgp.models.tune`, whose values are taken as they are.
    noise_variance : float, optional
        s2, on the scale of targets of unit variance. Tuned along with the kernel where it is not given; a `Kernel`
        needs it, unless white noise is part of it.
    optimizer : {"marginal_likelihood", "loo"} or None, default "marginal_likelihood"
        What is maximised on a subset of the samples to tune a kernel given as text; with None its starting values stay.
    subset_size : int, default 2000
        Samples of that subset.
    n_restarts_optimizer : int, default 0
        Further starting points.
    tol : float, default 1e-4
        The solve ends when no entry of the gradient Kbar alpha - y exceeds this.
    max_passes : float, optional
        Passes over the kernel matrix after which it ends all the same, with a `ConvergenceWarning`.
    solver : str or Solver, default "auto"
        "auto": what suits the problem by its sizes and a probe, as `solution_` then says; the name of a solver, such as
        "gbcd", greedy block coordinate descent; or one of `dkgp.solvers` with settings of your own.
    variance_gap : float, default 0.02
        Relative width of the intervals that variances are proven to lie in; those that take too long stay wider.
    client : distributed.Client, optional
        Whose workers to use; it stays open, and does not travel with copies and pickles. By default small problems run
        on this process's threads and larger ones on a cluster within this process.
    store : str, optional
        Folder or URL, readable by all workers, for what is too large for memory or has to reach other processes: the
        training set of dask arrays, and the model. It stays there. A temporary folder by default, which goes with the
        estimator.
    random_state : int, RandomState instance or None, default 0
        Of the subset and of starting points.

    Attributes
    ----------
    kernel_, noise_variance_
        The hyperparameters used, on the standardised scale.
    hyperparameters_ : Hyperparameters
        The same, with how they were found.
    certificate_ : dkgp.models.certificate.Certificate
        What is proven about the fit, converged or not, on the standardised scale. For a kernel with a function of a
        user's the proof takes for granted that it is positive definite, of which samples are all that was looked at.
    solution_ : dict
        How the solve went: converged, reason, iterations, column_passes, kernel_evaluations, seconds,
        gradient_inf_norm and more.
    history_ : list of dict
        A record for each round of the solve.
    n_features_in_ : int
    feature_names_in_ : (n_features_in_,) ndarray of str
        Where the inputs had names.
    target_names_ : tuple of str

    Examples
    --------
    >>> X = np.linspace(0.0, 6.0, 40)[:, None]
    >>> gp = GPRegressor().fit(X, np.sin(X[:, 0]))
    >>> mean, std = gp.predict([[1.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(1.5)) < 0.01)
    True
    """

    def __init__(
        self,
        kernel: str | Kernel | Hyperparameters = "rbf",
        *,
        noise_variance: float | None = None,
        optimizer: Literal["marginal_likelihood", "loo"] | None = "marginal_likelihood",
        subset_size: int = 2000,
        n_restarts_optimizer: int = 0,
        tol: float = 1e-4,
        max_passes: float | None = None,
        solver: str | Solver = "auto",
        variance_gap: float = 0.02,
        client: Any = None,
        store: str | None = None,
        random_state: Any = 0,
    ) -> None:
        self.kernel = kernel
        self.noise_variance = noise_variance
        self.optimizer = optimizer
        self.subset_size = subset_size
        self.n_restarts_optimizer = n_restarts_optimizer
        self.tol = tol
        self.max_passes = max_passes
        self.solver = solver
        self.variance_gap = variance_gap
        self.client = client
        self.store = store
        self.random_state = random_state

    # ------------------------------------------------------------------------------------------------------- training

    def fit(self, X: Any, y: Any = None) -> Self:
        """Tune where hyperparameters are not given, and train.

        Parameters
        ----------
        X : (n, d) array_like, DataFrame, dask array, xarray DataArray or Dataset, or path of a dataset store
            dask arrays, and xarray's of them, are written to a store chunk by chunk and need not fit in memory. An
            xarray Dataset has a one-dimensional variable for each feature.
        y : (n,) or (n, p) array_like, dask array or DataArray, optional
            For an xarray Dataset also the name of the variable that is the target, or a list of names; for a dataset
            store, which has its own targets, nothing.

        Returns
        -------
        GPRegressor
            This one.

        Raises
        ------
        InputError
            A `ValueError`: data or settings that cannot be worked with.
        """
        stopping, seed = stopping_of(self.tol, self.max_passes), seed_of(self.random_state)
        checked_solver(self.solver)
        workspace = Workspace(self.store)
        dataset, several = training_set(self, X, y, workspace)
        found = chosen_hyperparameters(
            self.kernel,
            dataset,
            noise_variance=self.noise_variance,
            optimizer=self.optimizer,
            subset=self.subset_size,
            restarts=1 + self.n_restarts_optimizer,
            seed=seed,
        )
        solver = solver_for(self.solver, dataset, found, self.tol, seed)
        with executor_for(self.client, dataset.n_samples) as executor:
            trained = train(dataset, found.kernel, found.noise_variance, executor, solver=solver, stopping=stopping)
        about = about_fit(self, dataset, found, several=several)
        self._take(FittedModel.of(trained, dataset, workspace, about))
        if found.converged is False:
            warnings.warn("; ".join(found.warnings), ConvergenceWarning, stacklevel=2)
        self._warn_of_shortfall()
        return self

    def update(self, X: Any, y: Any) -> Self:
        """Take in further samples, under the standardisation and the hyperparameters that there are.

        The solve goes on from where it was, at a fraction of a new fit's passes over the kernel matrix; see
        `dkgp.models.update`. It runs in this process, or on a `client` within it.

        Parameters
        ----------
        X, y
            As for `fit`. They are brought into memory.

        Returns
        -------
        GPRegressor
            This one.

        Raises
        ------
        InputError
            Other features or targets than the training set's, or a model that came without its targets.
        """
        check_is_fitted(self)
        fitted = self._fitted
        if fitted.dataset is None or fitted.gradient is None:
            raise InputError(
                "this model came without its training targets or its gradient, so it cannot be trained further; fit "
                "again with all samples"
            )
        dataset = append_rows(fitted.dataset, *new_samples(self, X, y, fitted.dataset))
        client = self.client if self.client is not None and is_in_process(self.client) else None
        with executor_for(client, dataset.n_samples) as executor:
            trained = update(
                dataset,
                self.kernel_,
                self.noise_variance_,
                executor,
                fitted.record.alpha,
                fitted.gradient,
                solver=solver_for_update(self.solver),
                stopping=stopping_of(self.tol, self.max_passes),
            )
        self._take(FittedModel.of(trained, dataset, fitted.workspace, fitted.about))
        self._warn_of_shortfall()
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """`fit` the first time, `update` from then on."""
        return self.update(X, y) if hasattr(self, "_fitted") else self.fit(X, y)

    def _take(self, fitted: FittedModel) -> None:
        """Show a model's parts under scikit-learn's names."""
        record, about = fitted.record, fitted.about
        self._fitted = fitted
        self._functions: dict[tuple[int, int], PosteriorFunctions] = {}
        self.kernel_ = kernel_from_json(record.kernel)
        self.noise_variance_ = record.noise_variance
        found = about.get("hyperparameters")
        self.hyperparameters_ = (
            Hyperparameters(self.kernel_, self.noise_variance_) if found is None else Hyperparameters.from_json(found)
        )
        self.certificate_ = Certificate.from_json(dict(record.certificate))
        self.solution_ = {name: value for name, value in record.summary.items() if name != "estimator"}
        self.history_ = record.history
        self.target_names_ = record.target_names

    def _warn_of_shortfall(self) -> None:
        if not self.solution_["converged"]:
            message = f"not converged: {self.solution_['reason']}; {self.solution_['advice']}. "
            warnings.warn(message + what_holds(self.kernel_), ConvergenceWarning, stacklevel=3)

    # ----------------------------------------------------------------------------------------------------- predictions

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_var: bool = False,
        return_bounds: bool = False,
        *,
        latent: bool = False,
    ) -> Any:
        """Predict the mean, and on request how sure it is.

        Parameters
        ----------
        X : (r, d) array_like, DataFrame, dask array, xarray DataArray or Dataset, or path of a dataset store
            An xarray Dataset's variables are matched to the features by name; others that it has do not matter.
        return_std : bool
            Also the standard deviation, from the upper end of the interval that the variance is proven to lie in.
        return_var : bool
            Also the variance, as that upper end.
        return_bounds : bool
            Also `PredictionBounds`: mean_error, variance_lower, variance_upper.
        latent : bool
            Variances of the function itself; by default those of a new observation, noise included.

        Returns
        -------
        mean, or (mean, std, variance, bounds) of those asked for
            (r,), or (r, p) where the targets were two-dimensional; in the targets' units. Of dask arrays: dask arrays
            with the same row chunks, not computed; one task a chunk computes all of them, so compute them together
            (`dask.compute(mean, std)`). Of xarray's: DataArrays named after the target, with the samples' coordinates,
            lazy where the inputs are. Of a dataset store: lazy DataArrays.
        """
        check_is_fitted(self)
        flags = {"std": return_std, "variance": return_var, "bounds": return_bounds}
        asked = ("mean", *(name for name, wanted in flags.items() if wanted))
        client = None if self.client is None or is_in_process(self.client) else self.client
        return predictions(
            self._fitted,
            self._inputs(X),
            asked,
            VarianceSettings(gap=self.variance_gap, latent=bool(latent)),
            several=self._several,
            client=client,
        )

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Any:
        """Draw functions from the posterior and evaluate them, without noise.

        With the same `n_samples` and `random_state`, a whole number, they are the same functions at every call, so that
        values at different points, asked for together or not, belong together. Their prior has random frequencies,
        whose covariance is off by about 1 % of the amplitude; what the samples say is exact. For kernels other than
        sums of linear and products of stationary ones, values are drawn jointly instead, at up to 4,000 samples and
        points in all, and belong together within one call only.

        Parameters
        ----------
        X
            As for `predict`; computed at once.
        n_samples : int
            How many functions.
        random_state : int, RandomState instance or None

        Returns
        -------
        (r, n_samples) or (r, p, n_samples) ndarray
            In the targets' units; of labelled inputs a DataArray.
        """
        check_is_fitted(self)
        key = (int(n_samples), seed_of(random_state))
        if key not in self._functions:
            while len(self._functions) >= MOST_KEPT_DRAWS:
                self._functions.pop(next(iter(self._functions)))
            self._functions[key] = PosteriorFunctions(
                self._fitted.record, self._fitted.version, count=key[0], seed=key[1], tolerance=self.tol
            )
        table = self._inputs(X)
        raw = table.inputs.compute() if is_dask(table.inputs) else table.inputs
        values = self._functions[key](standardised(self._fitted.record, np.asarray(raw, dtype=np.float64)))
        values = values if self._several else values[:, 0]
        return (
            values
            if table.labels is None
            else label(values, table.labels, self.target_names_, "sample", several=self._several, last_dimension="draw")
        )

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Coefficient of determination R^2 of the predicted mean; lazy inputs are computed.

        Parameters
        ----------
        X, y
            As for `fit`.
        sample_weight : (r,) array_like, optional
        """
        from sklearn.metrics import r2_score

        check_is_fitted(self)
        targets = true_targets(X, y)
        mean = self.predict(X)
        return float(r2_score(targets, np.asarray(mean), sample_weight=sample_weight))

    @property
    def _several(self) -> bool:
        return bool(self._fitted.about.get("several_targets", len(self._fitted.record.target_names) > 1))

    def _inputs(self, X: Any) -> Table:
        if is_plain(X):
            return Table(plain_inputs(self, X), None)
        names = given_names(self)
        if names is not None:
            # Those that were constant are not asked for.
            names = tuple(compress(names, self._fitted.record.standardisation.kept))
        return read_inputs(X, names)

    # -------------------------------------------------------------------------------------------------------- keeping

    def save(self, url: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to a store, with all that predicting and updating take; `dkgp predict` reads it too.

        Raises
        ------
        OutputExistsError, StorageError
            The place is taken, or cannot be written to.
        """
        check_is_fitted(self)
        self._fitted.save(os.fspath(url), overwrite=overwrite)

    @classmethod
    def load(cls, url: str | os.PathLike[str], *, client: Any = None) -> Self:
        """Open a model that was saved here or by `dkgp train`, without its training set.

        Parameters
        ----------
        url
            Local path or fsspec URL.
        client : distributed.Client, optional

        Raises
        ------
        StoreError
            Nothing there, or not a model that is whole.
        """
        fitted = FittedModel.load(os.fspath(url), Workspace(None))
        record, about = fitted.record, fitted.about
        kernel = kernel_from_json(record.kernel)
        estimator = cls(**settings_of(about.get("settings", {}), kernel, record.noise_variance), client=client)
        estimator._take(fitted)
        estimator.n_features_in_ = record.standardisation.n_raw_features
        names = about.get("raw_feature_names", record.feature_names)
        if about.get("has_names", len(names) == estimator.n_features_in_):
            estimator.feature_names_in_ = np.asarray(names, dtype=object)
        return estimator

    def __getstate__(self) -> dict[str, Any]:
        """Without the client, which belongs to this process, and what can be made again."""
        state: dict[str, Any] = {**super().__getstate__(), "client": None}
        state.pop("_functions", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_fitted" in state:
            self._functions = {}

    def __sklearn_clone__(self) -> Self:
        """A new estimator with the same parameters, and the same client rather than a copy of it."""
        from sklearn.base import clone

        parameters = {
            name: value if name == "client" else clone(value, safe=False)
            for name, value in self.get_params(deep=False).items()
        }
        return type(self)(**parameters)

    def __sklearn_tags__(self) -> Any:
        """Several targets are welcome."""
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        tags.target_tags.multi_output = True
        return tags
