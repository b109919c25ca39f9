"""Base of classifiers whose probabilities are a likelihood's: of all samples, with intervals, or of a basis."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from dkgp.estimators.classification.base import CertifiedClassifier
from dkgp.estimators.classification.labels import LabelledSet
from dkgp.estimators.fitted import Fitted, FittedClassifier
from dkgp.estimators.parameters import CountOrNone
from dkgp.estimators.scikit_learn import check_is_fitted
from dkgp.models import Hyperparameters
from dkgp.models.classification.basis import BASES, DEFAULT_BASIS, BasisSettings
from dkgp.models.classification.labels import LabelledData
from dkgp.models.classification.likelihoods import Likelihood, Link
from dkgp.models.classification.logistic import RiskSettings
from dkgp.models.classification.near import train_with_basis
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
        """Nothing: the annotations say all."""

    @abstractmethod
    def _likelihood(self, n_classes: int) -> Likelihood:
        """The likelihood of so many classes."""

    @abstractmethod
    def _trained_on_all(
        self, data: LabelledData, hyperparameters: Hyperparameters, context: RunContext, settings: RiskSettings
    ) -> TrainedClassifier:
        """Train a model of all samples."""

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
        """Settings of a basis."""
        return BasisSettings(size, self.basis, self.certify, seed=seed)

    def _lambda(self) -> float:
        """The regularisation."""
        return 1.0

    def _evidence(self) -> Link:
        """The likelihood by whose evidence kernels are tuned."""
        return "logit"

    def _kernel_and_noise(self, training_set: LabelledSet, seed: int) -> Hyperparameters:
        self._likelihood(training_set.labels.n_classes)  # One that is none is refused before anything is tuned.
        # The noise has no meaning here: the kernel's amplitude says it all.
        return self._tuned(training_set, seed, 1.0, self._evidence())

    def _take(self, fitted: Fitted) -> None:
        super()._take(fitted)
        record = self._fitted.record
        del self.noise_variance_  # a likelihood's classifier has none
        self.regularisation_ = record.regularisation
        assert record.likelihood is not None
        self.likelihood_ = Likelihood.from_json(record.likelihood)
        self.n_basis_ = record.n_support if record.is_sparse else None

    @classmethod
    def _settings_from(cls, fitted: Fitted) -> dict[str, Any]:
        assert isinstance(fitted, FittedClassifier)
        settings = super()._settings_from(fitted)
        del settings["noise_variance"]
        return {**settings, "n_basis": fitted.record.n_support if fitted.record.is_sparse else None}

    # ----------------------------------------------------------------------------------------------------- predictions

    def predict_proba(self, X: Any, return_intervals: bool = False) -> Any:
        """Probabilities of the classes, (r, C), in the order of `classes_`; rows sum to one.

        Of a pandas DataFrame they are one with its index, and the classes as columns.

        Parameters
        ----------
        return_intervals : bool
            Also between which two numbers each probability of the exact minimiser lies, proven; of a model of all
            samples.

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
