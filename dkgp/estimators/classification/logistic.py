"""`KernelLogisticClassifier`: kernel logistic regression on scikit-learn's conventions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dkgp.estimators.classification.probabilistic import LikelihoodClassifier
from dkgp.estimators.fitted import Fitted, FittedClassifier
from dkgp.estimators.parameters import Positive
from dkgp.models import Hyperparameters
from dkgp.models.classification.labels import LabelledData
from dkgp.models.classification.likelihoods import Likelihood, MultiClass
from dkgp.models.classification.logistic import RiskSettings, train_logistic
from dkgp.models.classification.trained import TrainedClassifier
from dkgp.models.context import RunContext


@dataclass(eq=False, repr=False, kw_only=True)
class KernelLogisticClassifier(LikelihoodClassifier):
    """Kernel logistic regression, with certified labels and intervals of probabilities.

    Minimises sum_i l(y_i, f(x_i)) + lambda |f|^2 / 2 over the functions of the kernel's space, l the logistic loss, or
    of several classes that of softmax (Ratliff and Bagnell, *Kernel conjugate gradient for fast kernel machines*, 2007,
    equations 2 and 3; their print of 3 has the other sign). Out of core where the samples are. Each decision comes with
    a proven bound on its distance from the exact minimiser's, so that labels are *certified* and probabilities lie in
    intervals.

    Parameters
    ----------
    kernel : str, Kernel or Hyperparameters, default "rbf"
        An expression such as "rbf" or "matern32 + linear", whose values are tuned; or a kernel of the standardised
        features, or hyperparameters, whose values are taken as they are.
    regularisation : float, default 1.0
        lambda. It and the kernel's amplitude are one parameter: tuned kernels belong to 1.
    multi_class : {"softmax", "ovr"}, default "softmax"
        Of more than two classes: all in one problem, or one against the rest, probabilities divided by their sum.
    optimizer : {"laplace", "vif"} or None, default "laplace"
        Tunes a kernel given as text by Laplace's evidence of a subset; "vif": by that of all labels, each class against
        the rest, on a basis of 200 with neighbours, as `dkgp tune --objective vif` does. With None its starting values
        stay.
    subset_size : int, default 2000
        Samples to tune on.
    n_basis : int, optional
        Samples or centres that the function is a sum over; by default all samples.
    basis : str, default "pivoted"
        How the basis is chosen: "uniform", "pivoted", "variance", "k-centre", "k-means", "entropy".
    certify : bool, default False
        Of a basis: also prove how far it is from the minimiser of all samples, which takes a pass over the kernel
        matrix. Else nothing of it is certified.
    class_weight : dict or "balanced", optional
        Weight of each class's losses, by label; "balanced" has all classes count the same.
    tol : float, default 1e-3
        Decisions are proven to be within so much of the exact minimiser's when the minimisation stops.
    solver : {"auto", "kcg", "newton", "majorisation", "gradient", "paramcg"}, default "auto"
        How the risk is minimised, of all samples; the guide to solvers has them.
    max_passes : float, optional
        Passes over the kernel matrix at most.
    client : distributed.Client, optional
        Workers to compute with.
    store : str, optional
        Folder or URL that all workers can read, for what has to be stored; by default a temporary folder.
    random_state : int, RandomState or None, default 0
    product_error : float or {"auto", "none"}, default "auto"
        Allowed error of an entry of a product with the kernel matrix, of a model of all samples: as of `GPRegressor`.

    Attributes
    ----------
    classes_ : (C,) ndarray
    kernel_, hyperparameters_, solution_, history_, n_features_in_, feature_names_in_
        As of `GPRegressor`.
    regularisation_ : float
    likelihood_ : dkgp.models.classification.likelihoods.Likelihood
    n_basis_ : int or None
        Points of the basis; None where all samples are.

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
    def _settings_from(cls, fitted: Fitted) -> dict[str, Any]:
        assert isinstance(fitted, FittedClassifier)
        record, settings = fitted.record, super()._settings_from(fitted)
        assert record.likelihood is not None
        several: MultiClass = "ovr" if len(record.classes) > 2 and record.likelihood["name"] == "logit" else "softmax"
        return {**settings, "regularisation": record.regularisation, "multi_class": several}
