"""`GaussianProcessRegressor`: scikit-learn's class, name for name, over dkgp's dense algebra or its engine.

Beyond memory the engine computes the same posterior and never holds the kernel matrix. Inputs and targets are not
scaled, so that kernel and noise have scikit-learn's meaning. If only differences of inputs matter, inputs that lie away
from the origin are shifted there.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from dkgp.cluster.client_executor import is_in_process
from dkgp.data import Dataset, Standardisation, dataset_from_arrays
from dkgp.data.stores.memory_dataset import assembled_dataset
from dkgp.errors import InputError, MemoryBudgetError, NumericalError
from dkgp.estimators.drop_in.dense import (
    Bounds,
    DensePosterior,
    Evidence,
    Predicted,
    asked_for,
    prior_interval,
    search,
    search_bytes,
    searched_rows,
    tree_under,
)
from dkgp.estimators.drop_in.parameters import (
    GIBIBYTE,
    KERNEL,
    OPTIMIZER,
    inputs_to_predict,
    require_dense,
    solve_bytes,
    training_samples,
)
from dkgp.estimators.drop_in.parameters import kernels as sk
from dkgp.estimators.drop_in.translation import to_dkgp
from dkgp.estimators.drop_in.tree import Entries, Pair, tree_of
from dkgp.estimators.fitted import FittedModel, Workspace
from dkgp.estimators.inputs import numbers_of, require_same_order, weights_of_score
from dkgp.estimators.outputs import PredictionBounds, quantities
from dkgp.estimators.parameters import (
    CheckedElsewhere,
    Count,
    CountOrNone,
    RandomState,
    Restarts,
    check_parameters,
    check_value,
)
from dkgp.estimators.scikit_learn import (
    BaseEstimator,
    ConvergenceWarning,
    MultiOutputMixin,
    RegressorMixin,
    TakesSparse,
    check_random_state,
    clone,
)
from dkgp.estimators.settings import ambient_client, executor_for, solver_for, stopping_of
from dkgp.kernels import Kernel, Linear, Polynomial, fold_white
from dkgp.models.exact import train
from dkgp.models.noise import Noise
from dkgp.models.problem import Problem
from dkgp.models.rounding import mean_in_units, outward, variance_in_units
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import ArrayInputs, centre_of

# Of the largest entry of the gradient Kbar alpha - y, relative to the targets' size.
TOLERANCE = 1e-5
MOST_PASSES = 2000.0
VARIANCE_GAP = 0.01


class EnginePosterior:
    """The posterior of samples whose kernel matrix does not fit.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel
        With the values to be used.
    X : (n, d) array
    targets : (n, t) float64
    alpha : float or (n,) float64
        Noise that belongs to no kernel.
    seed : int

    Raises
    ------
    InputError
        A kernel that dkgp does not have, or a sample without any noise.

    Warns
    -----
    ConvergenceWarning
        The solve stopped short; bounds of predictions hold.
    """

    def __init__(self, kernel: Any, X: Any, targets: FloatArray, alpha: Entries, seed: int) -> None:
        rows = np.ascontiguousarray(X, dtype=np.float64)
        d = rows.shape[1]
        ours, self.white = fold_white(to_dkgp(kernel, d), 0.0)
        noise = _noise_of(self.white, alpha)
        workspace = Workspace(None)
        dataset = _unscaled(rows, targets, _shift_of(ours, rows), workspace)
        size = float(np.sqrt(np.mean(targets**2))) or 1.0
        tolerance = TOLERANCE * size
        solver, products = solver_for("auto", Problem(dataset, ours, noise), tolerance, seed)
        with executor_for(None, dataset) as executor:
            executor.tiles = replace(executor.tiles, products=products)
            stopping = stopping_of(tolerance, MOST_PASSES)
            trained = train(dataset, ours, noise, executor, solver=solver, stopping=stopping)
        self.fitted = FittedModel.of(trained.model(dataset), workspace, {})
        self.coefficients = np.asarray(trained.solution.alpha)
        self.summary = trained.summary
        if not trained.summary["converged"]:
            warnings.warn(
                f"not converged: {trained.summary['reason']}; {trained.summary['advice']}. The bounds of predictions "
                "(`return_bounds`) are valid",
                ConvergenceWarning,
                stacklevel=3,
            )

    def predicted(self, rows: Any, *, variance: bool, bounds: bool) -> Predicted:
        """Predict as `DensePosterior` does; variances are the middles of proven intervals."""
        # Means that are asked for alone have the same last bits with bounds beside them.
        alone = {} if variance else quantities(self.fitted, rows, ("mean",))
        if not (variance or bounds):
            return alone["mean"], None, None
        names = ("mean", "mean_error", "variance_lower", "variance_upper")
        known = quantities(self.fitted, rows, names, VarianceSettings(gap=VARIANCE_GAP, latent=True)) | alone
        # scikit-learn's variances have the kernel's own noise, and not `alpha`.
        lower, upper = (known[name][:, 0] for name in ("variance_lower", "variance_upper"))
        if self.white:
            lower, upper = outward(lower + self.white, upper + self.white)
        proven = (known["mean_error"], lower, upper)
        return known["mean"], 0.5 * (lower + upper) if variance else None, proven if bounds else None


def _shift_of(kernel: Kernel, rows: FloatArray) -> FloatArray:
    """Return the shift of the inputs: their centre if only differences of inputs matter, else zero; (d,).

    The rounding of x - c is one of the two that every scaled coordinate is taken to have
    (`TileEvaluator.row_errors`), so that bounds hold for the inputs as they are.
    """
    if any(isinstance(part, Linear | Polynomial) for part in kernel.walk()):
        return np.zeros(rows.shape[1])
    centre = centre_of(ArrayInputs(rows))
    return np.zeros(rows.shape[1]) if centre is None else centre


def _unscaled(rows: FloatArray, targets: FloatArray, shift: FloatArray, workspace: Workspace) -> Dataset:
    """Samples as a data set without scaling; in a store if workers of other processes read it."""
    (n, d), t = rows.shape, targets.shape[1]
    standardisation = replace(Standardisation.identity(d, t), input_mean=shift)
    names = tuple(f"x{i}" for i in range(d)), tuple(f"y{i}" for i in range(t))
    client = ambient_client(n)
    if client is None or is_in_process(client):
        return assembled_dataset(standardisation.inputs(rows), targets, standardisation, *names, "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of constant features, which stay as they are
        feature_names, target_names = names
        stored = dataset_from_arrays(
            workspace.url("training-set"), rows, targets, feature_names=feature_names, target_names=target_names
        )
    return stored.as_seen_by(feature_names, target_names, standardisation)


def _noise_of(white: float, alpha: Entries) -> Noise:
    """Return the noise of the samples: the least variance, and by how much each exceeds it, if they differ.

    Raises `InputError`: a sample without any noise.
    """
    values = np.asarray(alpha, dtype=np.float64)
    least = float(values.min())
    if not white + least > 0.0:
        raise InputError(
            f"alpha= is {least:g}, and the kernel has no WhiteKernel; beyond `dense_bytes` samples need noise. Give "
            "alpha= a positive value, or add a WhiteKernel"
        )
    return Noise(white + least, None if values.ndim == 0 or bool((values == least).all()) else values - least)


@dataclass(eq=False, repr=False)
class GaussianProcessRegressor(TakesSparse, MultiOutputMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Gaussian process regression with the parameters, attributes and meanings of scikit-learn's class of this name.

    The class does not standardise inputs. Its noise is `alpha` and the kernel's `WhiteKernel`, and it maximises the log
    marginal likelihood over all samples. `dkgp.GPRegressor` differs in all three. If the kernel matrix fits into
    `dense_bytes`, the class works in memory, with any kernel object. Otherwise it uses dkgp's solvers, and tunes on a
    random subset, for the kernels of `dkgp.estimators.drop_in.translation`.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel, optional
        By default `ConstantKernel() * RBF()`. Parameters whose bounds are "fixed" do not change.
    alpha : float or (n,) ndarray, default 1e-10
        Value added to the diagonal of the training samples' kernel matrix. Predicted variances do not include it.
    optimizer : "fmin_l_bfgs_b", callable or None, default "fmin_l_bfgs_b"
        None: the kernel does not change. A function is called as optimizer(obj_func, initial_theta, bounds=bounds)
        and returns (theta, value).
    n_restarts_optimizer : int, default 0
        Number of further starting points, drawn log-uniformly between the bounds.
    normalize_y : bool, default False
        Subtract the targets' mean and divide by their standard deviation before the fit.
    copy_X_train : bool, default True
        Keep a copy of the inputs instead of the array itself.
    n_targets : int, optional
        Number of targets of predictions and draws before `fit`.
    random_state : int, RandomState instance or None, default None
        Seed of the starting points, and of the subset for many samples.

    Attributes
    ----------
    X_train_, y_train_
        Training samples, with normalised targets.
    kernel_ : sklearn.gaussian_process.kernels.Kernel
        The tuned kernel.
    alpha_ : (n,) or (n, t) ndarray
        Kbar^-1 y.
    L_ : (n, n) ndarray
        Lower Cholesky factor of Kbar. It does not exist if the kernel matrix does not fit into `dense_bytes`.
    log_marginal_likelihood_value_ : float
        Value for `kernel_`, on the subset if a subset was used.
    n_features_in_, feature_names_in_
    dense_bytes : int
        Attribute of the class: memory limit of dense algebra, 2 GiB, which is enough for 9,400 samples.

    Examples
    --------
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> gp = GaussianProcessRegressor(RBF(), alpha=1e-6).fit(X, np.sin(X[:, 0]))
    >>> mean, std = gp.predict([[1.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(1.5)) < 1e-3)
    True
    """

    kernel: Annotated[Any, KERNEL] = None
    _: KW_ONLY
    alpha: CheckedElsewhere = 1e-10
    optimizer: Annotated[Any, OPTIMIZER] = "fmin_l_bfgs_b"
    n_restarts_optimizer: Restarts = 0
    normalize_y: bool = False
    copy_X_train: bool = True  # noqa: N815
    n_targets: CountOrNone = None
    random_state: RandomState = None

    dense_bytes: ClassVar[int] = 2 * GIBIBYTE
    _posterior: DensePosterior | EnginePosterior = field(init=False)

    # ------------------------------------------------------------------------------------------------------- training

    def fit(self, X: Any, y: Any) -> Self:
        """Search the kernel's numbers, and train.

        Parameters
        ----------
        X : (n, d) array_like, or a list of objects that the kernel takes
        y : (n,) or (n, t) array_like

        Returns
        -------
        GaussianProcessRegressor
            This one.

        Raises
        ------
        InputError
            A `ValueError`: parameters or data that cannot be worked with.
        numpy.linalg.LinAlgError
            The kernel matrix is not positive definite.

        Warns
        -----
        ConvergenceWarning
            The search did not converge or ended at a bound, or the engine's solve stopped short.
        UserWarning
            Hyperparameters were searched on a subset.
        """
        check_parameters(self)
        self.kernel_ = sk.ConstantKernel() * sk.RBF() if self.kernel is None else clone(self.kernel)
        rng = check_random_state(self.random_state)
        X, y = training_samples(self, X, y, multi_output=True, y_numeric=True)
        targets = self._normalised(y)
        self._noise = self._alpha(len(y))
        self.X_train_ = np.copy(X) if self.copy_X_train else X
        self.y_train_ = targets
        evidence = self._evidence()
        fits = solve_bytes(len(y)) <= self.dense_bytes
        if not fits:
            to_dkgp(self.kernel_, np.shape(X)[1])  # refused before anything is searched
        value = self._search(evidence, rng) if self.optimizer is not None and self.kernel_.n_dims > 0 else None
        if fits:
            value = self._train_dense(evidence, value)
        else:
            seed = int(rng.randint(2**31 - 1))
            self._posterior = EnginePosterior(self.kernel_, self.X_train_, evidence.targets, self._noise, seed)
        self.log_marginal_likelihood_value_ = np.float64(math.nan if value is None else value)
        self.alpha_ = self._posterior.coefficients.reshape(targets.shape)
        return self

    def _normalised(self, y: FloatArray) -> FloatArray:
        """Normalise the targets if asked for, and set their mean and scale."""
        if self.n_targets is not None and (y.shape[1] if y.ndim > 1 else 1) != self.n_targets:
            raise InputError(
                "The number of targets seen in `y` is different from the parameter `n_targets`: got "
                f"{y.shape[1] if y.ndim > 1 else 1} != {self.n_targets}"
            )
        shape = y.shape[1:] if y.ndim > 1 else (1,)
        if not self.normalize_y:
            self._y_train_mean, self._y_train_std = np.zeros(shape), np.ones(shape)
            return np.copy(y) if self.copy_X_train else y
        mean, spread = np.mean(y, axis=0), np.std(y, axis=0)
        # Of a constant target nothing but rounding remains.
        constant = spread <= 10.0 * np.finfo(np.float64).eps * np.maximum(np.abs(mean), 1e-300)
        self._y_train_mean = np.asarray(mean)
        self._y_train_std = np.asarray(np.where(constant, 1.0, spread))
        return np.asarray((y - self._y_train_mean) / self._y_train_std)

    def _alpha(self, n: int) -> Entries:
        """Check `alpha` and return it as a number or as (n,)."""
        values = numbers_of(self.alpha, "alpha")
        odd = values[~((values >= 0.0) & np.isfinite(values))]
        if odd.size:
            raise InputError(f"alpha= takes a finite number from 0, or one for each sample; got {odd[0]}")
        if values.shape in ((), (1,)):
            return float(values.reshape(-1)[0])
        if values.shape != (n,):
            raise InputError(
                "alpha must be a scalar or an array with same number of entries as y. "
                f"({' x '.join(map(str, values.shape))} != {n})"
            )
        return values

    def _evidence(self) -> Evidence:
        """The likelihood of the training samples; shared distances are not kept beyond this object."""
        columns = np.ascontiguousarray(self.y_train_.reshape(len(self.y_train_), -1), dtype=np.float64)
        return Evidence(Pair(self.X_train_, self.X_train_), columns, self._noise)

    def _search(self, evidence: Evidence, rng: Any) -> float:
        """Set `kernel_` to the values of the highest likelihood, and return that likelihood."""
        tree, n, alpha = tree_of(self.kernel_), len(evidence.targets), evidence.alpha
        rows = searched_rows(n, tree, self.dense_bytes, rng)
        if rows is not None:
            part = np.asarray(self.X_train_)[rows]
            noise = alpha[rows] if isinstance(alpha, np.ndarray) else alpha
            evidence = Evidence(Pair(part, part), evidence.targets[rows], noise)
        return search(self, tree, evidence, rng)

    def _train_dense(self, evidence: Evidence, value: float | None) -> float:
        """Factorise the kernel matrix, and return the log marginal likelihood."""
        try:
            posterior = DensePosterior(tree_of(self.kernel_), evidence)
        except NumericalError:
            raise np.linalg.LinAlgError(
                f"The kernel, {self.kernel_}, is not returning a positive definite matrix. Try gradually increasing "
                "the 'alpha' parameter of your GaussianProcessRegressor estimator."
            ) from None
        self._posterior = posterior
        if value is not None:
            return value
        n, t = evidence.targets.shape
        fit = float(np.vdot(evidence.targets, posterior.coefficients))
        return float(-0.5 * (fit + t * (posterior.log_determinant() + n * math.log(2.0 * math.pi))))

    @property
    def L_(self) -> FloatArray:  # noqa: N802  scikit-learn's name
        """Lower Cholesky factor of Kbar, (n, n)."""
        if not hasattr(self, "_posterior"):
            raise AttributeError("L_ is there once the estimator is fitted")
        if isinstance(self._posterior, EnginePosterior):
            n = len(self.X_train_)
            instead = "There is none: solve with `predict`, or raise it and fit again"
            require_dense("the Cholesky factor", n, solve_bytes(n), self.dense_bytes, instead)
            raise MemoryBudgetError("the model was trained without a Cholesky factor; fit it again")
        return np.tril(self._posterior.factor)

    # ----------------------------------------------------------------------------------------------------- predictions

    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False, *, return_bounds: bool = False
    ) -> Any:
        """Predict the mean, and on request its standard deviation or covariance; before `fit`, those of the prior.

        Parameters
        ----------
        X : (r, d) array_like, or a list of objects that the kernel takes
        return_std, return_cov : bool
            Also standard deviations, or covariances; not both. They hold the kernel's own noise and not `alpha`.
        return_bounds : bool
            Also `PredictionBounds`, proven: the largest error of the mean, and the ends between which the exact
            variance lies. Not scikit-learn's; infinite for a kernel of a class that is not scikit-learn's own, and for
            one that need not be positive definite, as `ExpSineSquared` of several features.

        Returns
        -------
        mean, or (mean, std or covariance, bounds) of those asked for
            (r,) or (r, t); covariances (r, r) or (r, r, t); the bounds' parts as the mean.

        Raises
        ------
        NumericalError
            A prediction is not finite, or the kernel is proven not to be positive definite.
        """
        if return_std and return_cov:
            raise RuntimeError("At most one of return_std or return_cov can be requested.")
        if not hasattr(self, "_posterior"):
            return self._prior(inputs_to_predict(self, X), return_std, return_cov, return_bounds)
        X = inputs_to_predict(self, X)
        covariance = variance = None
        if return_cov:
            mean, covariance, bounds = self._with_covariance(X, return_bounds)
        else:
            mean, variance, bounds = self._posterior.predicted(X, variance=return_std, bounds=return_bounds)
        several = mean.shape[1] > 1
        shown = self._y_train_std * mean + self._y_train_mean
        results: list[Any] = [shown if several else shown[:, 0]]
        scale = np.asarray(self._y_train_std, dtype=np.float64).reshape(-1) ** 2
        if covariance is not None:
            scaled = covariance[:, :, None] * scale
            results.append(scaled if several else scaled[:, :, 0])
        if variance is not None:
            if bool((variance < 0.0).any()):
                warnings.warn("Predicted variances smaller than 0. Setting those variances to 0.", stacklevel=2)
            deviation = np.sqrt(np.maximum(variance, 0.0)[:, None] * scale)
            results.append(deviation if several else deviation[:, 0])
        if bounds is not None:
            results.append(self._bounds(bounds, mean, several=several))
        return results[0] if len(results) == 1 else tuple(results)

    def _with_covariance(self, X: Any, bounds: bool) -> tuple[FloatArray, FloatArray, Bounds | None]:
        if isinstance(self._posterior, EnginePosterior):
            n = len(self.X_train_)
            instead = "Ask for return_std, which the engine solves for, or for draws at a model of fewer samples"
            require_dense("the covariance of predictions", n, solve_bytes(n), self.dense_bytes, instead)
            raise MemoryBudgetError("the model was trained without a Cholesky factor; fit it again")
        return *self._posterior.mean_and_covariance(X), self._posterior.bounds(X) if bounds else None

    def _bounds(self, bounds: Bounds, mean: FloatArray, *, several: bool) -> PredictionBounds:
        """Bounds in the targets' units; `mean` (r, t) is the posterior's."""
        error, lower, upper = bounds
        scale = np.broadcast_to(np.asarray(self._y_train_std, dtype=np.float64).reshape(-1), mean.shape[1:])
        offset = np.broadcast_to(np.asarray(self._y_train_mean, dtype=np.float64).reshape(-1), mean.shape[1:])
        _, error = mean_in_units(mean, error, scale, offset)
        with np.errstate(invalid="ignore"):
            lower, upper = variance_in_units(lower, upper, scale)
        parts = (error, lower, upper)
        return PredictionBounds(*(part if several else part[:, 0] for part in parts))

    def _prior(self, X: Any, std: bool, cov: bool, bounds: bool) -> Any:
        """The prior: mean zero, and the kernel's variances."""
        kernel = sk.ConstantKernel(1.0, "fixed") * sk.RBF(1.0, "fixed") if self.kernel is None else self.kernel
        t = 1 if self.n_targets is None else self.n_targets
        several = t > 1
        mean = np.zeros((len(X), t) if several else len(X))
        results: list[Any] = [mean]
        variance = np.array(kernel.diag(X), dtype=np.float64)
        if cov:
            covariance = np.asarray(kernel(X))
            results.append(np.repeat(covariance[:, :, None], t, axis=2) if several else covariance)
        variances = np.repeat(variance[:, None], t, axis=1) if several else variance
        if std:
            results.append(np.sqrt(variances))
        if bounds:
            ends = prior_interval(tree_of(kernel), X)
            lower, upper = (np.repeat(end[:, None], t, axis=1) if several else end for end in ends)
            results.append(PredictionBounds(np.zeros_like(mean), lower, upper))
        return mean if len(results) == 1 else tuple(results)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Coefficient of determination R^2 of the predicted mean.

        Parameters
        ----------
        sample_weight : (r,) array_like, optional
        """
        require_same_order(X, y=y)
        return float(super().score(X, numbers_of(y, "y"), weights_of_score(X, sample_weight)))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> FloatArray:
        """Draw from the posterior, or before `fit` from the prior, at test samples.

        Parameters
        ----------
        random_state : int, RandomState instance or None

        Returns
        -------
        (r, n_samples) or (r, t, n_samples) ndarray
            scikit-learn's own draws, where the random state is the same.
        """
        check_value("n_samples", Count, n_samples)
        check_value("random_state", RandomState, random_state)
        rng = check_random_state(random_state)
        mean, covariance = self.predict(X, return_cov=True)
        if mean.ndim == 1:
            draws: FloatArray = rng.multivariate_normal(mean, covariance, n_samples).T
            return draws
        by_target = [
            rng.multivariate_normal(mean[:, t], covariance[:, :, t], n_samples).T for t in range(mean.shape[1])
        ]
        return np.stack(by_target, axis=1)

    # ------------------------------------------------------------------------------------------------------ likelihood

    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False, clone_kernel: bool = True) -> Any:
        """Log marginal likelihood of the training targets under other numbers of the kernel.

        Parameters
        ----------
        theta : (q,) array_like, optional
            Logarithms, as `kernel_.theta`; by default the value for `kernel_` is returned as it was found.
        eval_gradient : bool
            Also the gradient (q,).
        clone_kernel : bool
            If False, `kernel_` itself takes these numbers.

        Raises
        ------
        MemoryBudgetError
            The samples' kernel matrix does not fit `dense_bytes`.
        """
        values = asked_for(self, theta, eval_gradient)
        if values is None:
            return self.log_marginal_likelihood_value_
        tree, n = tree_under(self.kernel_, values, clone=clone_kernel), len(self.X_train_)
        needed = search_bytes(n, tree) if eval_gradient else solve_bytes(n)
        require_dense("the likelihood", n, needed, self.dense_bytes, "Raise it, or fit fewer samples")
        value, gradient = self._evidence()(tree, gradient=bool(eval_gradient))
        # NumPy's double, as scikit-learn's is: a plain number becomes a single beside one.
        return (np.float64(value), gradient) if eval_gradient else np.float64(value)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_posterior")
