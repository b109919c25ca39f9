"""Classifiers whose probabilities are a likelihood's: `KernelLogisticClassifier` and `GPClassifier`."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from dkgp.codec import from_json
from dkgp.errors import InputError
from dkgp.estimators.classifiers import CertifiedClassifier, LabelledSet
from dkgp.estimators.parameters import CountOrNone, Positive
from dkgp.estimators.scikit_learn import check_is_fitted
from dkgp.models import Hyperparameters
from dkgp.models.classification.basis import BasisSettings
from dkgp.models.classification.labels import LabelledData
from dkgp.models.classification.likelihoods import Likelihood, Link, MultiClass
from dkgp.models.classification.logistic import RiskSettings, train_gp, train_logistic
from dkgp.models.classification.near import NearSettings, refuse_coupled, train_with_basis
from dkgp.models.classification.prototypes import BASES, DEFAULT_BASIS
from dkgp.models.classification.trained import BasisForm, TrainedClassifier
from dkgp.models.context import RunContext
from dkgp.registry import Option
from dkgp.solvers import MaxPasses
from dkgp.solvers.registry import AUTO
from dkgp.solvers.risk import RISK_METHODS


@dataclass(eq=False, repr=False, kw_only=True)
class LikelihoodClassifier(CertifiedClassifier):
    """Base of `KernelLogisticClassifier` and `GPClassifier`, whose parameters and attributes these are."""

    optimizer: Literal["laplace", "vif"] | None = "laplace"
    n_basis: CountOrNone = None
    basis: Annotated[str, Option(choices=BASES)] = DEFAULT_BASIS
    certify: bool = False
    solver: Annotated[str, Option(choices=(AUTO, *RISK_METHODS))] = AUTO

    _form: ClassVar[BasisForm]

    def _check_settings(self, seed: int) -> None:
        """Do nothing: the annotations check all parameters."""

    @abstractmethod
    def _likelihood(self, n_classes: int) -> Likelihood: ...

    @abstractmethod
    def _trained_on_all(
        self, data: LabelledData, hyperparameters: Hyperparameters, context: RunContext, settings: RiskSettings
    ) -> TrainedClassifier: ...

    def _trained(
        self, data: LabelledData, hyperparameters: Hyperparameters | None, context: RunContext, seed: int
    ) -> TrainedClassifier:
        assert hyperparameters is not None
        likelihood = self._likelihood(data.labels.n_classes)
        if self.n_basis is None:
            settings = RiskSettings(
                likelihood,
                self._lambda(),
                self.solver,
                self.tol,
                limits=None if self.max_passes is None else MaxPasses(self.max_passes),
                seed=seed,
            )
            return self._trained_on_all(data, hyperparameters, context, settings)
        return train_with_basis(
            data,
            hyperparameters,
            context,
            self._basis(self.n_basis, seed),
            likelihood=likelihood,
            form=self._form,
            regularisation=self._lambda(),
        )

    def _basis(self, size: int, seed: int) -> BasisSettings:
        return BasisSettings(size, self.basis, self.certify, seed=seed)

    def _lambda(self) -> float:
        """The regularisation parameter lambda."""
        return 1.0

    def _evidence(self) -> Link:
        """Link of the likelihood by whose evidence kernels are tuned."""
        return "logit"

    def _kernel_and_noise(self, training_set: LabelledSet, seed: int) -> Hyperparameters:
        self._likelihood(training_set.labels.n_classes)  # One that is none is refused before anything is tuned.
        # The noise has no meaning here: the kernel's amplitude says it all.
        return self._tuned(training_set, seed, 1.0, self._evidence())

    def _take(self, fitted: Any) -> None:
        super()._take(fitted)
        record = self._fitted.record
        del self.noise_variance_  # a likelihood's classifier has none
        self.regularisation_ = record.regularisation
        self.likelihood_ = from_json(Likelihood, record.likelihood)
        self.n_basis_ = record.n_support if record.is_sparse else None

    @classmethod
    def _settings_from(cls, fitted: Any) -> dict[str, Any]:
        settings = super()._settings_from(fitted)
        del settings["noise_variance"]
        return {**settings, "n_basis": fitted.record.n_support if fitted.record.is_sparse else None}

    # ----------------------------------------------------------------------------------------------------- predictions

    def predict_proba(self, X: Any, return_intervals: bool = False) -> Any:
        """Return the probabilities of the classes (r, C), in the order of `classes_`; rows sum to one.

        For a pandas DataFrame the result is a DataFrame with the same index, and the classes as columns.

        Parameters
        ----------
        return_intervals : bool
            For a model of all samples: also return proven lower and upper bounds of the exact minimiser's
            probabilities.

        Returns
        -------
        probabilities, or (probabilities, lower, upper)
            (r, C) each.
        """
        check_is_fitted(self)
        ends = ("probability_lower", "probability_upper") if return_intervals else ()
        predictions = self._predicted(X, "probability", *ends)
        return predictions if return_intervals else predictions[0]

    def predict_log_proba(self, X: Any) -> Any:
        """Logarithms of `predict_proba`."""
        return np.log(self.predict_proba(X))


@dataclass(eq=False, repr=False, kw_only=True)
class KernelLogisticClassifier(LikelihoodClassifier):
    """Kernel logistic regression, with certified labels and proven intervals of probabilities.

    The model minimises the risk sum_i l(y_i, f(x_i)) + lambda |f|^2 / 2 over the functions of the kernel's space. l is
    the logistic loss, or for several classes softmax's (Ratliff and Bagnell, *Kernel conjugate gradient for fast kernel
    machines*, 2007, equations 2 and 3; the printed sign of 3 is wrong). Each decision has a proven bound on its
    distance from the exact minimiser's. It makes labels *certified*, and gives an interval for each probability.

    Parameters
    ----------
    kernel : str, Kernel or Hyperparameters, default "rbf"
        An expression such as "rbf" or "matern32 + linear", which `fit` tunes; or a kernel of the standardised features
        or hyperparameters, which it does not change.
    regularisation : float, default 1.0
        lambda. Only its ratio to the kernel's amplitude matters; a tuned kernel assumes 1.
    multi_class : {"softmax", "ovr"}, default "softmax"
        Treatment of three or more classes: one model for all; or one per class against the rest, with normalised
        probabilities.
    optimizer : {"laplace", "vif"} or None, default "laplace"
        Objective that tunes an expression: the marginal likelihood of a subset's labels in Laplace's approximation; or
        with "vif" that of all labels, each class against the rest, on a basis of 200 with neighbours
        (`dkgp tune --objective vif`). None: the expression keeps its initial values.
    subset_size : int, default 2000
        Number of samples in the subset.
    n_basis : int, optional
        Train a sparse model on a basis of this number of samples. By default all samples.
    basis : str, default "pivoted"
        Method that chooses the basis: "uniform", "pivoted", "variance", "k-centre", "k-means" or "entropy".
    certify : bool, default False
        With `n_basis`: prove the distance from the minimiser of all samples, with one pass over the kernel matrix. By
        default a sparse model certifies nothing.
    class_weight : dict or "balanced", optional
        Weight of each class's losses, by label. "balanced": all classes have the same total weight.
    tol : float, default 1e-3
        Proven largest distance of a decision from the exact minimiser's when the minimisation stops.
    solver : {"auto", "kcg", "newton", "majorisation", "gradient", "paramcg"}, default "auto"
        Method that minimises the risk of all samples; the guide to solvers describes them.
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
    kernel_, hyperparameters_, solution_, history_, n_features_in_, feature_names_in_
        See `GPRegressor`.
    regularisation_ : float
    likelihood_ : dkgp.models.classification.likelihoods.Likelihood
    n_basis_ : int or None
        Number of points of the basis; None for a model of all samples.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> y = np.where(X[:, 0] * X[:, 1] > 0.0, "same", "other")
    >>> model = KernelLogisticClassifier().fit(X, y)
    >>> label, certified = model.predict([[1.0, 1.0], [1.0, -1.0]], return_certified=True)
    >>> label.tolist(), certified.tolist()
    (['same', 'other'], [True, True])
    >>> p, lower, upper = model.predict_proba([[1.0, 1.0]], return_intervals=True)
    >>> bool((lower <= p).all() and (p <= upper).all() and (upper - lower).max() < 0.01)
    True
    """

    regularisation: Positive = 1.0
    multi_class: MultiClass = "softmax"

    _form = "logistic"

    def _likelihood(self, n_classes: int) -> Likelihood:
        return Likelihood.of("logit", self.multi_class, n_classes)

    def _lambda(self) -> float:
        return self.regularisation

    def _trained_on_all(
        self, data: LabelledData, hyperparameters: Hyperparameters, context: RunContext, settings: RiskSettings
    ) -> TrainedClassifier:
        return train_logistic(data, hyperparameters, context, settings)

    @classmethod
    def _settings_from(cls, fitted: Any) -> dict[str, Any]:
        record, settings = fitted.record, super()._settings_from(fitted)
        several: MultiClass = "ovr" if len(record.classes) > 2 and record.likelihood["name"] == "logit" else "softmax"
        return {**settings, "regularisation": record.regularisation, "multi_class": several}


@dataclass(eq=False, repr=False, kw_only=True)
class GPClassifier(LikelihoodClassifier):
    """Gaussian process classifier by Laplace's approximation, with proven intervals of probabilities.

    Laplace's method approximates the posterior of the latent function at its mode. The probability of a class is an
    average over this posterior, so it tends to a half far from all samples (Rasmussen and Williams, *Gaussian processes
    for machine learning*, 2006, section 3.4). scikit-learn's `GaussianProcessClassifier` does the same with an n x n
    matrix. dkgp solves for mode and variances without that matrix, to proven bounds, or on a basis.

    Parameters
    ----------
    kernel : str, Kernel or Hyperparameters, default "rbf"
        See `KernelLogisticClassifier`. A larger amplitude allows probabilities closer to 0 and 1.
    link : {"logit", "probit"}, default "logit"
        Probability as a function of the latent function.
    multi_class : {"ovr", "softmax"}, default "ovr"
        Treatment of three or more classes: one model per class against the rest, with normalised probabilities; or one
        for all.
    neighbours : int, optional
        With `n_basis`: number of nearest samples, such as 128, that each prediction also uses, and that the model
        stores. The basis covers long-range dependence, the neighbours short-range dependence. No bounds are proven.
    optimizer, subset_size, n_basis, basis, certify, class_weight, tol, solver, max_passes, client, store, random_state
        See `KernelLogisticClassifier`.
    product_error : float or {"auto", "none"}, default "auto"
        See `KernelLogisticClassifier`.

    Attributes
    ----------
    classes_, kernel_, hyperparameters_, solution_, history_, likelihood_, n_basis_, n_features_in_, feature_names_in_
        See `KernelLogisticClassifier`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> y = np.where(X[:, 0] * X[:, 1] > 0.0, "same", "other")
    >>> model = GPClassifier().fit(X, y)
    >>> near, far = model.predict_proba([[1.0, 1.0], [40.0, 40.0]])[:, 1]
    >>> bool(near > 0.9), bool(abs(far - 0.5) < 0.01)
    (True, True)
    """

    link: Link = "logit"
    multi_class: MultiClass = "ovr"
    neighbours: CountOrNone = None

    _form = "gp"

    def _evidence(self) -> Link:
        return self.link

    def _likelihood(self, n_classes: int) -> Likelihood:
        likelihood = Likelihood.of(self.link, self.multi_class, n_classes)
        if self.neighbours is not None:
            refuse_coupled(likelihood)
        return likelihood

    def _check_settings(self, seed: int) -> None:
        super()._check_settings(seed)
        if self.neighbours is None:
            return
        if self.n_basis is None:
            raise InputError(f"neighbours={self.neighbours} is of a basis: give n_basis= too, such as 200")
        self._basis(self.n_basis, seed)  # refuses, before anything is tuned

    def _basis(self, size: int, seed: int) -> BasisSettings:
        if self.neighbours is None:
            return super()._basis(size, seed)
        return NearSettings(size, self.basis, self.certify, seed=seed, neighbours=self.neighbours)

    def _trained_on_all(
        self, data: LabelledData, hyperparameters: Hyperparameters, context: RunContext, settings: RiskSettings
    ) -> TrainedClassifier:
        if settings.likelihood.coupled:
            raise InputError(
                'multi_class="softmax" averages over the covariance of all classes, too large for all samples; '
                'give n_basis=, such as 500, or multi_class="ovr"'
            )
        return train_gp(data, hyperparameters, context, settings)

    @classmethod
    def _settings_from(cls, fitted: Any) -> dict[str, Any]:
        settings, likelihood = super()._settings_from(fitted), fitted.record.likelihood
        softmax = likelihood["name"] == "softmax"
        return {
            **settings,
            "link": "logit" if softmax else likelihood["name"],
            "multi_class": "softmax" if softmax else "ovr",
            "neighbours": fitted.record.neighbours,
        }
