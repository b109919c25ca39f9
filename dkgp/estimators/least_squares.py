"""Least-squares support vector machines on scikit-learn's conventions: `LSSVC`, exact, and `FixedSizeLSSVC`."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np

from dkgp.codec import from_json
from dkgp.errors import InputError
from dkgp.estimators.classifiers import CertifiedClassifier, KernelClassifier, LabelledSet
from dkgp.estimators.inputs import numbers_of
from dkgp.estimators.parameters import CheckedElsewhere, PositiveOrNone, Takes
from dkgp.estimators.scikit_learn import available_if, check_is_fitted
from dkgp.estimators.settings import checked_solver
from dkgp.kernels import Kernel, fold_white, parse_kernel
from dkgp.models import Hyperparameters
from dkgp.models.classification.calibration import Calibration
from dkgp.models.classification.certificate import DecisionCertificate
from dkgp.models.classification.exact import ExactSettings, train_exact
from dkgp.models.classification.fixed_size.settings import (
    CANDIDATES,
    FOLDS,
    MAX_BASIS,
    POOL,
    POOL_CHOICE,
    FixedSizeSettings,
)
from dkgp.models.classification.fixed_size.train import train_fixed_size
from dkgp.models.classification.labels import LabelledData, Labels
from dkgp.models.classification.trained import TrainedClassifier
from dkgp.models.context import RunContext
from dkgp.operators.product_error import ProductError
from dkgp.solvers import MaxPasses
from dkgp.solvers.registry import AUTO, build_solver


def _has_probabilities(estimator: Any) -> bool:
    """Return True if there are probabilities; the error says how to get them."""
    if not estimator.probability:
        raise AttributeError("there are no probabilities: set probability=True and fit again")
    return True


@dataclass(eq=False, repr=False, kw_only=True)
class CalibratedClassifier(KernelClassifier):
    """Base of least-squares machines, whose decisions a calibration turns into probabilities."""

    noise_variance: CheckedElsewhere = None
    probability: bool = True

    def _take(self, fitted: Any) -> None:
        super()._take(fitted)
        record = self._fitted.record
        self.intercept_ = record.intercept
        self.calibration_ = None if record.calibration is None else from_json(Calibration, record.calibration)

    @classmethod
    def _settings_from(cls, fitted: Any) -> dict[str, Any]:
        return {**super()._settings_from(fitted), "probability": fitted.record.calibration is not None}

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]  # scikit-learn ships no types
    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities of the classes (r, C), in the order of `classes_`; rows sum to one.

        For a pandas DataFrame the result is a DataFrame with the same index, and the classes as columns.

        The calibration uses decisions at left-out samples, with an offset for each class. If two classes are about
        equally likely, the label of `predict` follows the decision and may be the less likely one, as with
        scikit-learn's `SVC`. `classes_[predict_proba(X).argmax(axis=1)]` are the labels by probability.

        Raises
        ------
        InputError
            The model was stored without probabilities.
        """
        check_is_fitted(self)
        if self.calibration_ is None:
            raise InputError("the model was trained without probabilities; train it again with `probability`")
        return self._predicted(X, "probability")[0]

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Any:
        """Logarithms of `predict_proba`."""
        return np.log(self.predict_proba(X))


@dataclass(eq=False, repr=False, kw_only=True)
class LSSVC(CalibratedClassifier, CertifiedClassifier):
    """Exact least-squares support vector machine, with certified labels.

    All samples are support vectors: the decision f(x) = sum_i alpha_i k(x, x_i) + b solves the LS-SVM's linear system
    (Karsmakers, Pelckmans, De Brabanter, Van Hamme and Suykens, *Sparse conjugate directions pursuit with application
    to fixed-size kernel models*, 2011, equations 21 to 23). One solve of dkgp's solvers has C + 1 right-hand sides.
    Each decision has a proven bound on its distance from the exact decision. A label is *certified* to be the exact
    machine's if the decision exceeds its bound.

    Parameters
    ----------
    kernel : str, Kernel or Hyperparameters, default "rbf"
        An expression such as "rbf" or "matern32 + linear", which `fit` tunes; or a kernel of the standardised features
        or hyperparameters, which it does not change.
    noise_variance : float, optional
        s2 = 1 / gamma_K of the paper; larger is smoother. By default tuned together with the kernel. A `Kernel` needs
        it.
    optimizer : {"marginal_likelihood"} or None, default "marginal_likelihood"
        Objective that tunes an expression, on a subset of the labels, coded as -1 and 1. None: the expression keeps its
        initial values.
    subset_size : int, default 2000
        Number of samples in the subset.
    fit_intercept : bool, default True
    class_weight : dict or "balanced", optional
        Weight of each class in the sum of squared errors, by label. "balanced": all classes have the same total weight.
    probability : bool, default True
        Calibrate probabilities: Platt's sigmoid of decisions at samples of a subset, each predicted without itself.
    tol : float, default 1e-3
        Approximate largest distance of a decision from the exact decision when the solver stops.
    solver : str or solver, default "auto"
        Name of a solver, or a solver of `dkgp.solvers`.
    max_passes : float, optional
        Largest number of passes over the kernel matrix.
    client : distributed.Client, optional
        Client whose workers compute.
    store : str, optional
        Folder or URL that all workers can read, for stores. By default a temporary folder.
    random_state : int, RandomState or None, default 0
    product_error : float or {"auto", "none"}, default "auto"
        For a model of all samples: largest accepted error of an entry of a product with the kernel matrix; see
        `GPRegressor`.

    Attributes
    ----------
    classes_ : (C,) ndarray
    kernel_, noise_variance_, hyperparameters_, solution_, history_, n_features_in_, feature_names_in_
        See `GPRegressor`.
    intercept_ : (t,) ndarray
        One value for two classes, otherwise one for each class.
    certificate_ : dkgp.models.classification.certificate.DecisionCertificate
    calibration_ : dkgp.models.classification.calibration.Calibration or None

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> y = np.where(X[:, 0] * X[:, 1] > 0.0, "same", "other")
    >>> machine = LSSVC().fit(X, y)
    >>> label, certified = machine.predict([[1.0, 1.0], [1.0, -1.0]], return_certified=True)
    >>> label.tolist(), certified.tolist()
    (['same', 'other'], [True, True])
    """

    noise_variance: PositiveOrNone = None
    optimizer: Literal["marginal_likelihood"] | None = "marginal_likelihood"
    fit_intercept: bool = True
    solver: CheckedElsewhere = AUTO

    _form = "exact"

    def _holds(self) -> str:
        return "The error bounds of decisions are valid for this solution, but wider than requested"

    def _check_settings(self, seed: int) -> None:
        checked_solver(self.solver, ProductError.of(self.product_error))

    def _kernel_and_noise(self, training_set: LabelledSet, seed: int) -> Hyperparameters:
        return self._tuned(training_set, seed, self.noise_variance, None)

    def _trained(
        self, data: LabelledData, hyperparameters: Hyperparameters | None, context: RunContext, seed: int
    ) -> TrainedClassifier:
        assert hyperparameters is not None
        solver = checked_solver(self.solver)
        built = None if solver == AUTO else build_solver(solver, seed=seed) if isinstance(solver, str) else solver
        settings = ExactSettings(
            solver=built,
            tolerance=self.tol,
            limits=None if self.max_passes is None else MaxPasses(self.max_passes),
            fit_intercept=self.fit_intercept,
            calibrate=self.probability,
            calibration_subset=self.subset_size,
            seed=seed,
        )
        return train_exact(data, hyperparameters, context, settings)

    def _take(self, fitted: Any) -> None:
        super()._take(fitted)
        self.certificate_ = DecisionCertificate.from_json(dict(fitted.record.certificate))


# Parameters that `FixedSizeSettings` has under the same names.
_SETTINGS = (
    "pool",
    "prototypes",
    "max_basis",
    "candidates",
    "search",
    "cardinality",
    "isotropic",
    "intercept",
    "stop",
    "probability",
)


def _are_noise_variances(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, str | bool | dict):
        return False
    try:
        values = numbers_of(value, "noise_variance")
    except (TypeError, ValueError):
        return False
    return values.ndim < 2 and values.size > 0 and bool((np.isfinite(values) & (values > 0.0)).all())


NOISE = Takes("a positive number, a sequence of such, or None", _are_noise_variances)


@dataclass(eq=False, repr=False, kw_only=True)
class FixedSizeLSSVC(CalibratedClassifier):
    """Fixed-size least-squares support vector machine: a model of a few prototypes, fitted to all samples.

    Sparse conjugate directions pursuit selects prototypes from a pool, one after another. Cross-validation chooses
    their number k, the noise variance and the kernel's scale from sums over the samples, with one pass over the data
    for a few scales. The model keeps the whole pool if that is much better (Karsmakers, Pelckmans, De Brabanter, Van
    Hamme and Suykens, *Sparse conjugate directions pursuit with application to fixed-size kernel models*, 2011).

    Parameters
    ----------
    kernel : str, Kernel or Hyperparameters, default "rbf"
        An expression such as "rbf" or "matern32", a kernel of the standardised features, or hyperparameters of
        `dkgp tune`. "rbf" starts with one length scale per feature, by the marginal likelihood of a subset's labels.
        `search` then changes only the common factor of all length scales.
    noise_variance : float or sequence of float, optional
        Values of s2 = 1 / gamma_K of the paper to try; larger is smoother. By default powers of ten, with a finer grid
        around the best one.
    pool : int, optional
        Number of candidates for prototypes. By default 2,000; for three or more classes up to 4,000, limited to some
        seconds of work.
    prototypes : str, default "k-centre"
        Method that chooses the pool: "uniform", "k-centre", "entropy", "k-means", "pivoted", "variance" or "greedy".
    max_basis : int, optional
        Largest number of prototypes of the model. By default the pool.
    candidates : int, optional
        Number of random prototypes that each step examines (59 in the paper). By default all.
    folds : int, default 5
        Largest number of folds of the cross-validation; fewer if a class has fewer samples.
    search : {"shared", "grid", "profile", "annealing", "none"}, default "shared"
        Search for the kernel's scale. "shared": a line search that scores each scale with the whole pool, and finally
        keeps fewer prototypes if they score nearly as well; "grid": ten scales, scored in the same way; "profile": a
        line search that scores each scale with its best few prototypes; "annealing": coupled simulated annealing, as
        in the paper; "none": the initial scale.
    cardinality : {"tenth", "best", "one-standard-error"}, default "tenth"
        Rule for k: the fewest prototypes whose score is within a tenth of the folds' standard deviation of the best
        score; the best score; or the fewest within one standard error of it.
    isotropic : bool, default False
        Use one length scale for all features, as in the paper.
    intercept : {"first", "selected", "none"}, default "first"
        Always included; included if the pursuit selects it; or omitted.
    stop : (int, float) or None, default (10, 1e-3)
        Stop adding prototypes if the last `stop[0]` steps improved the score by a share of less than `stop[1]`.
    class_weight, probability, client, store, random_state
        See `LSSVC`.

    Attributes
    ----------
    classes_, kernel_, noise_variance_, solution_, history_, intercept_, calibration_, n_features_in_, feature_names_in_
        See `LSSVC`; `history_` has a record for each scale of the kernel.
    class_weight_ : dict or None
        Mean weight of the samples of each class; None if all samples have the same weight.
    path_ : list of dict
        For each `cardinality` the cross-validated `score` and its standard deviation over folds; one entry for a whole
        pool.
    n_basis_ : int
        Number of prototypes.
    prototypes_ : (k, d) ndarray
        Prototypes in the inputs' units, without constant features.
    prototype_indices_ : (k,) ndarray of int or None
        Numbers of the samples that are prototypes; None for other points, such as centres of k-means.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(400, 2))
    >>> y = np.where(X[:, 0] * X[:, 1] > 0.0, "same", "other")
    >>> machine = FixedSizeLSSVC(pool=50).fit(X, y)
    >>> machine.predict([[1.0, 1.0], [1.0, -1.0]]).tolist()
    ['same', 'other']
    >>> machine.n_basis_ <= 50
    True
    """

    noise_variance: Annotated[Any, NOISE] = None
    pool: Annotated[int | None, POOL] = None
    prototypes: Annotated[str, POOL_CHOICE] = "k-centre"
    max_basis: Annotated[int | None, MAX_BASIS] = None
    candidates: Annotated[int | None, CANDIDATES] = None
    folds: Annotated[int, FOLDS] = 5
    search: Literal["shared", "grid", "profile", "annealing", "none"] = "shared"
    cardinality: Literal["tenth", "best", "one-standard-error"] = "tenth"
    isotropic: bool = False
    intercept: Literal["first", "selected", "none"] = "first"
    stop: tuple[int, float] | None = (10, 1e-3)

    _form = "fixed-size"

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Choose prototypes, kernel scale and noise variance by cross-validation, and fit.

        Parameters
        ----------
        X, y, sample_weight
            As for `LSSVC.fit`.

        Returns
        -------
        FixedSizeLSSVC
            This one.

        Raises
        ------
        InputError
            A `ValueError`: data or settings that cannot be worked with, one class only, a missing label, a class of one
            sample, which cannot be left out.
        """
        return self._fit(X, y, sample_weight)

    def _check_settings(self, seed: int) -> None:
        self._settings(None, seed)

    def _kernel_and_noise(self, training_set: LabelledSet, seed: int) -> None:
        """None: cross-validation finds them."""

    def _trained(
        self, data: LabelledData, hyperparameters: Hyperparameters | None, context: RunContext, seed: int
    ) -> TrainedClassifier:
        kernel, noise = self._start(data.dataset)
        settings = self._settings(data.labels, seed)
        return train_fixed_size(data, settings, context, kernel=kernel, noise_variance=noise)

    def _settings(self, labels: Labels | None, seed: int) -> FixedSizeSettings:
        """Settings with at most as many folds as the rarest class has samples."""
        folds = operator.index(self.folds)
        if labels is not None:
            folds = min(folds, max(2, int(labels.counts().min())))
        values = None
        if self.noise_variance is not None and np.ndim(self.noise_variance) > 0:
            values = tuple(np.asarray(self.noise_variance, dtype=np.float64).tolist())
        same: dict[str, Any] = {name: getattr(self, name) for name in _SETTINGS}
        return FixedSizeSettings(folds=folds, noise_variances=values, seed=seed, **same)

    def _start(self, dataset: Any) -> tuple[Kernel | None, float | None]:
        """The kernel to start with, None if it is tuned, and the given noise variance, if it is one number."""
        noise = None if self.noise_variance is None or np.ndim(self.noise_variance) > 0 else float(self.noise_variance)
        kernel, names = self.kernel, dataset.feature_names
        if isinstance(kernel, Hyperparameters):
            kernel.check_features(dataset.n_features, names if kernel.feature_names is not None else None)
            if self.noise_variance is None:
                noise = kernel.noise_variance
            return kernel.kernel, noise
        if isinstance(kernel, str):
            parsed = parse_kernel(kernel, dataset.n_features, names)
            return (None if kernel.strip() == "rbf" else fold_white(parsed, 0.0)[0]), noise
        return kernel, noise

    def _take(self, fitted: Any) -> None:
        super()._take(fitted)
        record: Any = self._fitted.record
        to = record.standardisation
        self.class_weight_ = record.class_weights
        self.path_ = record.path
        self.n_basis_ = record.n_support
        self.prototypes_ = record.prototypes * to.input_std + to.input_mean
        self.prototype_indices_ = record.indices
