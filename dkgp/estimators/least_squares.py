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
        """Probabilities of the classes, (r, C), in the order of `classes_`; rows sum to one.

        Of a pandas DataFrame they are one with its index, and the classes as columns.

        They are fitted to decisions at samples that were left out, with an offset for each class. So where two classes
        are about as likely, the label, which is the decision's, need not be the likelier one (as of scikit-learn's
        `SVC`); `classes_[predict_proba(X).argmax(axis=1)]` are the labels by probability.

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
    to fixed-size kernel models*, 2011, equations 21 to 23) by dkgp's own solvers, C + 1 right-hand sides in one solve,
    out of core where the samples are. Each decision comes with a proven bound on its distance from the exact one's; a
    label whose decision exceeds its bound is *certified* to be the exact machine's.

    Parameters
    ----------
    kernel : str, Kernel or Hyperparameters, default "rbf"
        An expression such as "rbf" or "matern32 + linear", whose values are tuned; or a kernel of the standardised
        features, or hyperparameters, whose values are taken as they are.
    noise_variance : float, optional
        s2 = 1 / gamma_K of the paper: the larger, the smoother. Tuned along with the kernel where it is not given; a
        `Kernel` needs it.
    optimizer : {"marginal_likelihood"} or None, default "marginal_likelihood"
        Tunes a kernel given as text, on a subset of the labels as numbers -1 and 1; with None its starting values stay.
    subset_size : int, default 2000
        Samples to tune on.
    fit_intercept : bool, default True
    class_weight : dict or "balanced", optional
        Weight of each class in the sum of squared errors, by label; "balanced" has all classes count the same.
    probability : bool, default True
        Whether `predict_proba` is wanted: a sigmoid of decisions at samples of a subset, each left out (Platt).
    tol : float, default 1e-3
        Decisions are within about so much of the exact ones when the solver stops.
    solver : str or solver, default "auto"
        A name, or one of `dkgp.solvers`.
    max_passes : float, optional
        Passes over the kernel matrix at most.
    client : distributed.Client, optional
        Workers to compute with.
    store : str, optional
        Folder or URL that all workers can read, for stores; by default a temporary folder.
    random_state : int, RandomState or None, default 0
    product_error : float or {"auto", "none"}, default "auto"
        Allowed error of an entry of a product with the kernel matrix, of a model of all samples: as of `GPRegressor`.

    Attributes
    ----------
    classes_ : (C,) ndarray
    kernel_, noise_variance_, hyperparameters_, solution_, history_, n_features_in_, feature_names_in_
        As of `GPRegressor`.
    intercept_ : (t,) ndarray
        One column for two classes, otherwise one for each.
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
    """Fixed-size least-squares support vector machine: a few prototypes, all samples' errors.

    Out of a pool of prototypes sparse conjugate directions pursuit chooses k, for all k in turn, unless a whole pool
    does much better; cross-validation chooses k, the noise variance and the kernel's scale from sums over the samples
    alone, one pass over the data for a few scales (Karsmakers, Pelckmans, De Brabanter, Van Hamme and Suykens, *Sparse
    conjugate directions pursuit with application to fixed-size kernel models*, 2011).

    Parameters
    ----------
    kernel : str, Kernel or Hyperparameters, default "rbf"
        An expression such as "rbf" or "matern32"; a kernel of the standardised features; or hyperparameters, as of
        `dkgp tune`. "rbf" starts with a length scale for each feature, by the marginal likelihood of a subset's labels;
        others start as they are. `search` moves the common scale of all.
    noise_variance : float or sequence of float, optional
        s2 = 1 / gamma_K of the paper: the larger, the smoother. Those that are tried; by default decades, and finer
        about the best.
    pool : int, optional
        Prototypes to choose from; by default 2000, and of several classes up to 4000, as far as some seconds go.
    prototypes : str, default "k-centre"
        How the pool is chosen: "uniform", "k-centre", "entropy", "k-means", "pivoted", "variance", "greedy".
    max_basis : int, optional
        Most prototypes that a model may have; by default the pool.
    candidates : int, optional
        Prototypes drawn at random that each step looks at (59 in the paper); by default all.
    folds : int, default 5
        Folds of the cross-validation at most; fewer where a class has fewer samples.
    search : {"shared", "grid", "profile", "annealing", "none"}, default "shared"
        For the kernel's scale: in one dimension, judged by a whole pool for all classes at once; a few of these are
        taken in the end where they do nearly as well; the same, judged by the best few; coupled simulated annealing,
        as in the paper; or not at all.
    cardinality : {"tenth", "best", "one-standard-error"}, default "tenth"
        The fewest prototypes whose score is within a tenth of the folds' standard deviation of the best; the best; or
        within a standard error.
    isotropic : bool, default False
        One length scale for all features, as in the paper.
    intercept : {"first", "selected", "none"}, default "first"
    stop : (int, float) or None, default (10, 1e-3)
        Ends the pursuit where the mean score of so many steps is no better, relatively; None goes through all.
    class_weight, probability, client, store, random_state
        As of `LSSVC`.

    Attributes
    ----------
    classes_, kernel_, noise_variance_, solution_, history_, intercept_, calibration_, n_features_in_, feature_names_in_
        As of `LSSVC`; `history_` has a record for each scale of the kernel.
    class_weight_ : dict or None
        Mean weight of the samples of each class; None where all count the same.
    path_ : list of dict
        By `cardinality`: the cross-validated `score`, and its standard deviation over folds; of a whole pool that one.
    n_basis_ : int
        Number of prototypes.
    prototypes_ : (k, d) ndarray
        In the inputs' units; of the features that vary.
    prototype_indices_ : (k,) ndarray of int or None
        Training samples that the prototypes are; None where they are none, as centres of k-means.

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
