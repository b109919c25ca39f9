"""`GPRegressor`: the exact Gaussian process on scikit-learn's conventions."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from dkgp.cluster.client_executor import is_in_process
from dkgp.data import Dataset, append_rows
from dkgp.data.sources.labelled import label
from dkgp.errors import InputError
from dkgp.estimators.base import GPEstimator
from dkgp.estimators.fitted import Fitted, FittedModel, Workspace
from dkgp.estimators.inputs import computed
from dkgp.estimators.outputs import Form, what_holds
from dkgp.estimators.parameters import (
    AllowedError,
    CheckedElsewhere,
    Count,
    Positive,
    PositiveOrNone,
    check_parameters,
    check_value,
)
from dkgp.estimators.scikit_learn import check_is_fitted, seed_of
from dkgp.estimators.settings import (
    OBJECTIVES,
    checked_solver,
    executor_for,
    solver_for,
    solver_for_update,
    stopping_of,
)
from dkgp.estimators.targets import EstimatorMean, covariates_of, fits_groups, of_groups, require_centred
from dkgp.estimators.training_set import BOTH, SampleNoise, training_set
from dkgp.models.certificate import Certificate
from dkgp.models.context import RunContext
from dkgp.models.exact import train, update
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.noise import Noise
from dkgp.models.prediction.pathwise import PosteriorFunctions
from dkgp.models.prediction.posterior import standardised
from dkgp.models.problem import Problem
from dkgp.models.trend import Drift
from dkgp.models.tuning.noise import NoiseKind, NoiseLikelihood, tune_likelihood, tune_noise
from dkgp.models.tuning.search import Choices, SearchSettings
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.product_error import ProductError

# Draws of functions that an estimator keeps, so that they need not be solved for again at other points.
MOST_KEPT_DRAWS = 4


@dataclass(eq=False, repr=False, kw_only=True)
class GPRegressor(GPEstimator):
    """Exact Gaussian process regression.

    `fit` standardises inputs and targets, and leaves out constant features. Predictions are in the targets' own units.

    Parameters
    ----------
    kernel : str, Kernel or Hyperparameters, default "rbf"
        An expression such as "rbf" or "matern32 + linear" (`dkgp.kernels.parse_kernel`), which `fit` tunes; a kernel
        of the standardised features; or the result of `dkgp.models.tune`. `fit` does not change the last two.
    noise_variance : float, optional
        s2, for targets with variance 1. By default tuned together with the kernel. A `Kernel` needs it, unless white
        noise is part of the kernel.
    optimizer : {"marginal_likelihood", "loo", "vif"} or None, default "marginal_likelihood"
        Objective that tunes an expression: on a subset of the samples; with "vif" on all samples, for noise that is
        equal everywhere (`dkgp tune --objective vif`). None: the expression keeps its initial values.
    subset_size : int, default 2000
        Number of samples in the subset.
    n_restarts_optimizer : int, default 0
        Number of further starting points of the search.
    tol : float, default 1e-4
        Largest residual |Kbar alpha - y| at which the solve has converged.
    max_passes : float, optional
        Largest number of passes over the kernel matrix. A solve that needs more ends with a `ConvergenceWarning`.
    solver : str or Solver, default "auto"
        Name of a solver, such as "gbcd"; a solver of `dkgp.solvers`; or "auto": the fastest by a forecast, which
        `solution_` names.
    variance_gap : float, default 0.02
        Requested relative width of the proven intervals of variances. Intervals that would take too long stay wider.
    client : distributed.Client, optional
        Client whose workers compute. It stays open, and copies and pickles do not contain it. By default, for more
        than 20,000 samples, the default client of the program, else a cluster in this process; for fewer, threads.
    store : str, optional
        Folder or URL that all workers can read, for the training set of dask arrays and the model. Needed for data
        beyond memory and for other processes. By default a temporary folder that is removed with the estimator.
    random_state : int, RandomState instance or None, default 0
        Seed of the subset and of the starting points.
    noise_model : {"none", "linear", "gp", "auto"}, default "none"
        Model of noise that depends on the inputs, for a kernel that is tuned: the logarithm of the noise variance is
        linear, or a Gaussian process. "auto": the best on held-out samples of the subset.
    likelihood : {"gaussian", "student-t", "auto"}, default "gaussian"
        Distribution of the noise, for a kernel that is tuned, without a noise model. Student's t gives outliers less
        weight. "auto": the best on held-out samples of the subset. With Student's t, intervals of 1.96 standard
        deviations contain 95 % of new observations only approximately.
    mean : {"centred", "constant", "linear", "quadratic"}, float or regressor, default "centred"
        Mean of the function: the average of the targets; a polynomial of the inputs (degree 0, 1 or 2), whose
        coefficients follow by generalised least squares; a known mean in the targets' units; or a regressor of
        scikit-learn, which is fitted first. Variances and bounds include the uncertainty of a polynomial, which
        `solution_["mean"]` lists, but not that of a regressor.
    covariates : sequence of str or int, default ()
        Names or indices of features that only the mean uses (external drift). They need a `mean` with coefficients.
    with_variances : bool, default False
        Build a Cholesky factor of all samples (4 n^2 bytes) in `fit`, so that every variance takes one solve with it.
        By default `predict` chooses the method by the number of requested variances.
    product_error : float or {"auto", "none"}, default "auto"
        Largest accepted error of an entry of a product with the kernel matrix. "none": evaluate all kernel entries.
        "auto": the method with the shorter forecast time, with an error of at most a tenth of `tol`. Proven bounds
        include the error. Unless "none", predictions of means also use such products if they are faster.

    Attributes
    ----------
    kernel_, noise_variance_
        Hyperparameters on the standardised scale. With a noise model, the smallest noise variance of all samples.
    hyperparameters_ : Hyperparameters
        Kernel, noise and noise model, with a record of the search.
    certificate_ : dkgp.models.certificate.Certificate
        Proven bounds on the standardised scale, also without convergence. For a kernel with a user's function they
        assume that it is positive definite, which dkgp checks only on samples.
    solution_ : dict
        Record of the solve: converged, reason, iterations, column_passes, kernel_evaluations, seconds,
        gradient_inf_norm and others.
    history_ : list of dict
        One record for each round of the solve.
    n_features_in_ : int
    feature_names_in_ : (n_features_in_,) ndarray of str
        Only if the inputs have names.
    target_names_ : tuple of str
    parts_, groups_
        Only for targets with missing values: an estimator for each group of targets with the same samples, and names.

    Examples
    --------
    >>> X = np.linspace(0.0, 6.0, 40)[:, None]
    >>> gp = GPRegressor().fit(X, np.sin(X[:, 0]))
    >>> mean, std = gp.predict([[1.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(1.5)) < 0.01)
    True
    """

    optimizer: Literal["marginal_likelihood", "loo", "vif"] | None = "marginal_likelihood"
    tol: Positive = 1e-4
    max_passes: PositiveOrNone = None
    solver: CheckedElsewhere = "auto"
    variance_gap: Positive = 0.02
    noise_model: NoiseKind = "none"
    likelihood: NoiseLikelihood = "gaussian"
    mean: CheckedElsewhere = "centred"
    covariates: CheckedElsewhere = ()
    with_variances: bool = False
    product_error: AllowedError = "auto"

    _state: ClassVar[type[Fitted]] = FittedModel
    _fitted: FittedModel = field(init=False)

    # ------------------------------------------------------------------------------------------------------- training

    @fits_groups
    def fit(self, X: Any, y: Any = None, sample_noise: Any = None, sample_weight: Any = None) -> Self:
        """Tune the hyperparameters, unless they are set, and train.

        Parameters
        ----------
        X : (n, d) array_like, DataFrame, dask array or DataFrame, xarray DataArray or Dataset, or a store's path
            dask inputs, also within xarray's, are written to a store chunk by chunk and may exceed memory. An xarray
            Dataset has a one-dimensional variable for each feature.
        y : (n,) or (n, p) array_like, dask array or DataArray, optional
            For an xarray Dataset also the name of the target variable, or a list of names. Leave it out for a dataset
            store, which contains its targets. With several targets, some values may be NaN: see `parts_`.
        sample_noise : (n,) array_like, optional
            Known noise variance of each sample, in the target's units squared, in addition to the common s2, which is
            tuned and which new observations have. (n, p) for several targets. By default the noise in the dataset
            store.
        sample_weight : (n,) array_like, optional
            Weights up to 1e12, instead of `sample_noise`; they divide s2. A sample of weight 3 counts as three equal
            samples, and one of weight 0 is left out. Weights do not affect the standardisation.

        Returns
        -------
        GPRegressor
            The fitted estimator itself.

        Raises
        ------
        InputError
            A `ValueError`: invalid data or settings; the message names them.
        """
        check_parameters(self)
        stopping, seed = stopping_of(self.tol, self.max_passes), seed_of(self.random_state)
        error = ProductError.of(self.product_error)
        checked_solver(self.solver, error)
        workspace = Workspace(self.store)
        X, y, noise = SampleNoise.of(sample_noise, sample_weight).without_weightless(X, y)
        mean = EstimatorMean.of(self.mean, X, y)
        dataset, several = training_set(self, X, mean.taken_off(X, y), workspace)
        dataset = dataset.with_covariates(covariates_of(self.covariates, dataset.raw_feature_names))
        mean = replace(mean, drift=mean.drift.over(dataset))
        noise.of_dataset(dataset)
        hyperparameters = self._hyperparameters(dataset, seed, noise)
        problem = Problem(dataset, hyperparameters.kernel, self._noise_of(noise, hyperparameters, dataset), mean.drift)
        dataset = problem.dataset
        solver, products = solver_for(self.solver, problem, self.tol, seed, product_error=error)
        with executor_for(self.client, dataset) as executor:
            context = RunContext(executor, product_error=error)
            executor.tiles = replace(executor.tiles, products=products)
            if hyperparameters.student_t is not None:
                require_centred(self, "Student's t")
            trained = train(
                dataset, problem.kernel, problem.noise, context, mean=mean.drift, solver=solver, stopping=stopping
            )
        self._mean = mean
        self._keep(trained.model(dataset), (dataset, workspace), hyperparameters, several=several)
        if self.with_variances:
            self._fitted.posterior(self._variance_settings(latent=False), 1)
        return self

    @of_groups
    def update(self, X: Any, y: Any, sample_noise: Any = None, sample_weight: Any = None) -> Self:
        """Add samples, with the same standardisation and hyperparameters.

        The solve continues from the earlier solution, and takes a fraction of a new fit's passes over the kernel
        matrix; see `dkgp.models.update`. It runs in this process, or on a `client` within it.

        Parameters
        ----------
        X, y, sample_noise, sample_weight
            As for `fit`, but loaded into memory. Samples without known noise have only s2.

        Returns
        -------
        GPRegressor
            The fitted estimator itself.

        Raises
        ------
        InputError
            Features or targets differ from the training set's, or the model was loaded without its targets.
        """
        check_is_fitted(self)
        check_parameters(self)
        fitted = self._fitted
        if fitted.dataset is None or fitted.gradient is None:
            raise InputError(
                "this model came without its training targets or its gradient, so it cannot be trained further; fit "
                "again with all samples"
            )
        if self.hyperparameters_.student_t is not None:
            raise InputError(
                "under Student's t every sample's weight may change with new samples; fit again with all of them"
            )
        by_sample = {"sample_noise": sample_noise, "sample_weight": sample_weight}
        inputs, targets, noise = self._new_samples(X, y, fitted.dataset.n_targets, **by_sample)
        dataset = append_rows(fitted.dataset, inputs, targets)
        client = self.client if self.client is not None and is_in_process(self.client) else None
        with executor_for(client, dataset, ambient=False) as executor:
            trained = update(
                dataset,
                self.kernel_,
                noise.appended(fitted.record, dataset),
                executor,
                (fitted.record.alpha, fitted.gradient),
                mean=Drift.from_model(fitted.record),
                solver=solver_for_update(self.solver),
                stopping=stopping_of(self.tol, self.max_passes),
            )
        self._take(FittedModel.of(trained.model(dataset), fitted.workspace, fitted.about))
        self._warn(self._shortfall(), stacklevel=4)
        return self

    def _noise_of(self, noise: SampleNoise, hyperparameters: Hyperparameters, dataset: Dataset) -> Noise:
        """Return the noise of the samples: the user's, that of a law, or that of the data set.

        Raises `InputError` where the user gives it beside a noise model or Student's t.
        """
        known = noise.beside(hyperparameters.noise_variance, dataset.standardisation.target_std)
        if (hyperparameters.noise_model or hyperparameters.student_t) is not None and known is not None:
            raise InputError(BOTH)
        return hyperparameters.noise_of(dataset) if known is None else Noise(hyperparameters.noise_variance, known)

    def _hyperparameters(self, dataset: Dataset, seed: int, noise: SampleNoise) -> Hyperparameters:
        if self.noise_model == "none" and self.likelihood == "gaussian":
            return super()._hyperparameters(dataset, seed, noise)
        require_centred(self, "noise_model= and likelihood=")
        if self.noise_model != "none" and self.likelihood != "gaussian":
            raise InputError(
                f"noise_model={self.noise_model!r} is of noise with a normal distribution, and "
                f"likelihood={self.likelihood!r} of another; leave one of them out"
            )
        if not (isinstance(self.kernel, str) and self.optimizer in OBJECTIVES):
            raise InputError(
                "a noise model, or its distribution, is found where a kernel is tuned on a subset; give the kernel as "
                f"text, with optimizer= one of {', '.join(map(repr, OBJECTIVES))}, or hyperparameters that have it"
            )
        if noise.variances is not None or noise.relative is not None:
            raise InputError(BOTH)
        found = super()._hyperparameters(dataset, seed, noise)
        choices = Choices(objective=OBJECTIVES[str(self.optimizer)])
        options: Any = {"choices": choices, "settings": SearchSettings(seed=seed), "subset": self.subset_size}
        if self.likelihood != "gaussian":
            return tune_likelihood(dataset, found, self.likelihood, **options)
        return tune_noise(dataset, found, self.noise_model, **options)

    @of_groups
    def save(self, url: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to a store; `InputError` if the mean is a regressor, which no store holds."""
        check_is_fitted(self)
        self._mean.require_none("a store")
        super().save(url, overwrite=overwrite)

    def _take(self, fitted: Any) -> None:
        super()._take(fitted)
        self._functions: dict[tuple[int, int], PosteriorFunctions] = {}
        self.certificate_ = Certificate.from_json(dict(fitted.record.certificate))

    def _holds(self) -> str:
        return what_holds(self.kernel_)

    # ----------------------------------------------------------------------------------------------------- predictions

    @of_groups
    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_var: bool = False,
        return_bounds: bool = False,
        *,
        latent: bool = False,
    ) -> Any:
        """Predict the mean, and on request standard deviations, variances and bounds.

        Parameters
        ----------
        X : (r, d) array_like, DataFrame, dask array or DataFrame, xarray DataArray or Dataset, or a store's path
            The variables of an xarray Dataset are matched to the features by name; further variables are ignored.
        return_std : bool
            Also return the standard deviation, from the middle of the variance's proven interval.
        return_var : bool
            Also return the variance, the middle of this interval; `return_bounds` returns the ends.
        return_bounds : bool
            Also return `PredictionBounds`: mean_error, variance_lower, variance_upper.
        latent : bool
            Return variances of the function itself; by default those of a new observation, noise included.

        Returns
        -------
        mean, or the requested ones of (mean, std, variance, bounds)
            (r,), or (r, p) for two-dimensional targets, in the targets' units. The type follows the input. pandas
            DataFrame: Series named after the target, or DataFrames with one column per target, with the same index.
            dask array: lazy arrays with the same row chunks; one task per chunk computes all of them, so compute them
            together (`dask.compute(mean, std)`). dask DataFrame: Series with the same index. xarray: DataArrays named
            after the target, with the samples' coordinates, lazy if the inputs are. Dataset store: lazy DataArrays.
        """
        settings = self._variance_settings(latent=bool(latent))
        asked = {"std": return_std, "variance": return_var, "bounds": return_bounds}
        predicted = self._predictions(X, settings, **asked)
        return self._mean.added(X, predicted)

    def _variance_settings(self, *, latent: bool) -> VarianceSettings:
        check_parameters(self, "variance_gap", "with_variances")
        way = "cholesky" if self.with_variances else "auto"
        return VarianceSettings(gap=self.variance_gap, latent=latent, way=way)

    @of_groups
    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Any:
        """Draw functions from the posterior and evaluate them, without noise.

        With the same `n_samples` and `random_state`, a whole number, they are the same functions at every call, so that
        values at different points, asked for together or not, belong together. Their prior has random frequencies,
        whose covariance is off by about 1 % of the amplitude; the samples' part is exact. For kernels other than
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
        check_value("n_samples", Count, n_samples)
        key = (int(n_samples), seed_of(random_state))
        if key not in self._functions:
            while len(self._functions) >= MOST_KEPT_DRAWS:
                self._functions.pop(next(iter(self._functions)))
            self._functions[key] = PosteriorFunctions(
                self._fitted.record, self._fitted.version, count=key[0], seed=key[1], tolerance=self.tol
            )
        table = self._inputs(X)
        raw = np.asarray(computed(table.inputs), dtype=np.float64)
        values = self._functions[key](standardised(self._fitted.record, raw))
        values = self._mean.added_to_draws(X, values if self._several else values[:, 0])
        if table.labels is None:
            return values
        form = Form.of_targets(self.target_names_, "sample", several=self._several)
        targets = {} if form.columns is None else {form.across: form.columns}
        return label(values, table.labels, form.title, {**targets, "draw": None})

    def __getstate__(self) -> dict[str, Any]:
        """Leave out draws, which can be computed again."""
        state: dict[str, Any] = super().__getstate__()
        state.pop("_functions", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_fitted" in state:
            self._functions = {}
