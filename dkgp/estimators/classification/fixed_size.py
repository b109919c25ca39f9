"""`FixedSizeLSSVC`: the fixed-size least-squares support vector machine on scikit-learn's conventions."""

from __future__ import annotations

import operator
import warnings
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np

from dkgp.estimators.classification.base import CalibratedClassifier
from dkgp.estimators.classification.labels import LabelledSet
from dkgp.estimators.fitted import Fitted
from dkgp.estimators.parameters import CheckedElsewhere, Takes
from dkgp.estimators.values import numbers_of
from dkgp.kernels import Kernel, fold_white, parse_kernel
from dkgp.models import Hyperparameters
from dkgp.models.classification.fixed_size.settings import (
    CANDIDATES,
    FOLDS,
    MAX_BASIS,
    POOL,
    POOL_CHOICE,
    FixedSizeSettings,
)
from dkgp.models.classification.fixed_size.train import considered_weights, train_fixed_size, weighing_words
from dkgp.models.classification.labels import LabelledData, Labels, label_weights
from dkgp.models.classification.trained import TrainedClassifier
from dkgp.models.context import RunContext
from dkgp.operators.base import FloatArray

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
        For the kernel's scale: in one dimension, judged by a whole pool for all classes at once, of which a few are
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
    class_weight : "auto", "balanced", dict or None, default "auto"
        As of `LSSVC`; "auto" considers balanced weights where a class has less than 0.4 of an even share of the
        samples, takes them where they bring the balanced error of samples that were left out down, and warns of it.
        Only the searches "shared" and "grid" consider any.
    probability, client, store, random_state
        As of `LSSVC`.

    Attributes
    ----------
    classes_, kernel_, noise_variance_, solution_, history_, intercept_, calibration_, n_features_in_, feature_names_in_
        As of `LSSVC`; `history_` has a record for each scale of the kernel.
    class_weight_ : dict or None
        Mean weight of the samples of each class; None where all count the same. `solution_["weighings"]` has the errors
        without and with balanced weights, where "auto" considered them.
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
    class_weight: CheckedElsewhere = "auto"
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
    _further_weights = ("auto",)

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
        """None: cross-validation finds them on the way."""

    def _trained(
        self, data: LabelledData, hyperparameters: Hyperparameters | None, context: RunContext, seed: int
    ) -> TrainedClassifier:
        kernel, noise = self._start(data.dataset)
        settings = self._settings(data.labels, seed)
        considered = considered_weights(settings, data.labels, data.weights) if self._weights_by_itself else None
        trained = train_fixed_size(data, settings, context, kernel=kernel, noise_variance=noise, considered=considered)
        if trained.summary["weighted"]:
            told = f"{weighing_words(trained.summary)}. class_weight=None or 'balanced' decides it"
            warnings.warn(told, UserWarning, stacklevel=4)
        return trained

    @property
    def _weights_by_itself(self) -> bool:
        """True if class weights are the search's to choose."""
        return isinstance(self.class_weight, str) and self.class_weight == "auto"

    def _weights(self, training_set: LabelledSet) -> FloatArray | None:
        """As of the other classifiers; none by class where the search may take some."""
        if self._weights_by_itself:
            return label_weights(training_set.labels, None, training_set.sample_weight)
        return super()._weights(training_set)

    def _settings(self, labels: Labels | None, seed: int) -> FixedSizeSettings:
        """Settings, with as many folds as the rarest class allows."""
        folds = operator.index(self.folds)
        if labels is not None:
            folds = min(folds, max(2, int(labels.counts().min())))
        values = None
        if self.noise_variance is not None and np.ndim(self.noise_variance) > 0:
            values = tuple(np.asarray(self.noise_variance, dtype=np.float64).tolist())
        same: dict[str, Any] = {name: getattr(self, name) for name in _SETTINGS}
        return FixedSizeSettings(folds=folds, noise_variances=values, seed=seed, **same)

    def _start(self, dataset: Any) -> tuple[Kernel | None, float | None]:
        """The kernel to begin with, None for the one that is found, and a noise variance that is given."""
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

    def _take(self, fitted: Fitted) -> None:
        super()._take(fitted)
        record = self._fitted.record
        assert record.prototypes is not None
        to = record.standardisation
        self.class_weight_ = record.class_weights
        self.path_ = record.path
        self.n_basis_ = record.n_support
        self.prototypes_ = record.prototypes * to.input_std + to.input_mean
        self.prototype_indices_ = record.indices
