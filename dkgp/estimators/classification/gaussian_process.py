"""`GPClassifier`: Gaussian process classification on scikit-learn's conventions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dkgp.errors import InputError
from dkgp.estimators.classification.probabilistic import LikelihoodClassifier
from dkgp.estimators.fitted import Fitted, FittedClassifier
from dkgp.estimators.parameters import CountOrNone
from dkgp.models import Hyperparameters
from dkgp.models.classification.basis import BasisSettings
from dkgp.models.classification.labels import LabelledData
from dkgp.models.classification.likelihoods import Likelihood, Link, MultiClass
from dkgp.models.classification.logistic import RiskSettings, train_gp
from dkgp.models.classification.near import NearSettings, refuse_coupled
from dkgp.models.classification.trained import TrainedClassifier
from dkgp.models.context import RunContext


@dataclass(eq=False, repr=False, kw_only=True)
class GPClassifier(LikelihoodClassifier):
    """Gaussian process classifier by Laplace's approximation, with intervals of probabilities.

    The latent function's posterior is approximated at its mode; a class's probability is averaged over it, so that far
    from all samples it tends to a half (Rasmussen and Williams, *Gaussian processes for machine learning*, 2006,
    section 3.4). scikit-learn's `GaussianProcessClassifier` does the same with an n x n matrix; here mode and variances
    are solved for out of core, to proven bounds, or on a basis.

    Parameters
    ----------
    kernel : str, Kernel or Hyperparameters, default "rbf"
        As of `KernelLogisticClassifier`; its amplitude says how sure probabilities can be.
    link : {"logit", "probit"}, default "logit"
        From the latent function to a probability.
    multi_class : {"ovr", "softmax"}, default "ovr"
        Of more than two classes: one against the rest, probabilities divided by their sum; or all in one problem.
    neighbours : int, optional
        Of a basis: also stand each prediction on so many nearest samples (128, say), which the model keeps. The basis
        has what reaches far, they what is near; nothing is proven of it.
    optimizer, subset_size, n_basis, basis, certify, class_weight, tol, solver, max_passes, client, store, random_state
        As of `KernelLogisticClassifier`.
    product_error : float or {"auto", "none"}, default "auto"
        As of `KernelLogisticClassifier`.

    Attributes
    ----------
    classes_, kernel_, hyperparameters_, solution_, history_, likelihood_, n_basis_, n_features_in_, feature_names_in_
        As of `KernelLogisticClassifier`.

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
    def _settings_from(cls, fitted: Fitted) -> dict[str, Any]:
        assert isinstance(fitted, FittedClassifier)
        settings, likelihood = super()._settings_from(fitted), fitted.record.likelihood
        assert likelihood is not None
        softmax = likelihood["name"] == "softmax"
        return {
            **settings,
            "link": "logit" if softmax else likelihood["name"],
            "multi_class": "softmax" if softmax else "ovr",
            "neighbours": fitted.record.neighbours,
        }
