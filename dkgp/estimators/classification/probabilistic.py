"""Base of classifiers whose probabilities are a likelihood's: of all samples, with intervals, or of a basis."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any, ClassVar, Self

import numpy as np

from dkgp.cluster import BlockExecutor
from dkgp.data import ClassifierRecord
from dkgp.errors import InputError
from dkgp.estimators.classification.base import KernelClassifier
from dkgp.estimators.classification.fitted import FittedClassifier
from dkgp.estimators.classification.labels import LabelledSet, labelled_set
from dkgp.estimators.fitted import Fitted, Workspace
from dkgp.estimators.scikit_learn import ConvergenceWarning, check_is_fitted, seed_of
from dkgp.estimators.settings import chosen_hyperparameters, executor_for
from dkgp.kernels import Kernel
from dkgp.models import Hyperparameters
from dkgp.models.classification.basis.settings import BasisSettings
from dkgp.models.classification.hyperparameters import tune_labels
from dkgp.models.classification.likelihoods import Likelihood, Link
from dkgp.operators.base import FloatArray
from dkgp.solvers import MaxPasses, StoppingRule
from dkgp.solvers.risk import RISK_METHODS

__all__ = ["LikelihoodClassifier"]


class LikelihoodClassifier(KernelClassifier):
    """Base of `KernelLogisticClassifier` and `GPClassifier`, whose parameters and attributes these are."""

    n_basis: int | None
    basis: str
    certify: bool
    tol: float
    solver: str
    max_passes: float | None

    _optimizers: ClassVar[tuple[str, ...]] = ("laplace",)
    _form: ClassVar[type[FittedClassifier]]

    # ------------------------------------------------------------------------------------------------------- training

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Tune where hyperparameters are not given, minimise the risk and certify.

        Parameters
        ----------
        X
            (n, d) array, data frame or dask array, xarray Dataset, or the path of a dataset store, which brings labels.
        y
            Labels: numbers or text, (n,); of a Dataset also the name of a variable.
        sample_weight : (n,) array_like, optional
            Weights of the losses; relative to each other. Samples of weight zero are left out. A store may bring its
            own.

        Returns
        -------
        Self
            This one.

        Raises
        ------
        InputError
            A `ValueError`: data or settings that cannot be worked with, one class only, a missing label.

        Warns
        -----
        ConvergenceWarning
            The minimisation stopped before `tol` was reached; what is certified holds.
        """
        seed = seed_of(self.random_state)
        if self.solver not in ("auto", *RISK_METHODS):
            names = ", ".join(f'"{name}"' for name in ("auto", *RISK_METHODS))
            raise InputError(f"solver= takes one of {names}; got {self.solver!r}")
        workspace = Workspace(self.store)
        given = labelled_set(self, X, y, sample_weight, workspace)
        likelihood = self._likelihood(given.labels.n_classes)
        weights, found = self._weights(given), self._found(given, seed)
        with executor_for(self.client, given.dataset.n_samples) as executor:
            record = self._trained(given, found, likelihood, weights, executor, seed)
        about = self._about(given, found)
        self._take(self._form.of(record, given.dataset, workspace, about))
        if found.converged is False:
            warnings.warn("; ".join(found.warnings), ConvergenceWarning, stacklevel=2)
        if not record.summary["converged"]:
            warnings.warn(
                f"not converged: {record.summary['reason']}; {record.summary['advice']}. What is proven of it holds",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    @abstractmethod
    def _likelihood(self, n_classes: int) -> Likelihood:
        """The likelihood of so many classes."""

    @abstractmethod
    def _trained(
        self,
        given: LabelledSet,
        found: Hyperparameters,
        likelihood: Likelihood,
        weights: FloatArray | None,
        executor: BlockExecutor,
        seed: int,
    ) -> ClassifierRecord:
        """Train; return the model as it is stored."""

    @property
    def _limits(self) -> StoppingRule | None:
        return None if self.max_passes is None else MaxPasses(self.max_passes)

    def _basis_settings(self, seed: int) -> BasisSettings:
        assert self.n_basis is not None
        if self.n_basis < 1:
            raise InputError(f"`n_basis` must be at least 1; got {self.n_basis}")
        return BasisSettings(size=self.n_basis, basis=self.basis, certify=self.certify, seed=seed)

    def _link(self) -> Link:
        return "logit"

    def _found(self, given: LabelledSet, seed: int) -> Hyperparameters:
        """Hyperparameters that are given, or found by Laplace's evidence of a subset's labels."""

        def tuned(kernel: Kernel | None, fixed: dict[str, float] | None) -> Hyperparameters:
            about: dict[str, Any] = {"subset": self.subset_size, "seed": seed, "likelihood": self._link()}
            return tune_labels(given.dataset, given.labels, kernel=kernel, **about)

        return chosen_hyperparameters(
            self.kernel,
            given.dataset,
            noise_variance=1.0,  # there is none: the amplitude says it all
            optimizer=self.optimizer,
            optimizers=self._optimizers,
            tune=tuned,
        )

    def _take(self, fitted: Fitted) -> None:
        super()._take(fitted)
        assert isinstance(fitted, FittedClassifier)
        record = fitted.record
        # A likelihood's classifier has none of these.
        del self.noise_variance_, self.intercept_, self.calibration_
        self.regularisation_ = record.regularisation
        assert record.likelihood is not None
        self.likelihood_ = Likelihood.from_json(record.likelihood)
        self.n_basis_ = record.n_support if record.is_sparse else None

    @classmethod
    def _settings_from(cls, fitted: Fitted) -> dict[str, Any]:
        assert isinstance(fitted, FittedClassifier)
        said = super()._settings_from(fitted)
        del said["noise_variance"]
        return {**said, "n_basis": fitted.record.n_support if fitted.record.is_sparse else None}

    # ----------------------------------------------------------------------------------------------------- predictions

    def decision_function(self, X: Any, return_bounds: bool = False) -> Any:
        """Latent functions: of two classes positive for the second, otherwise one for each class.

        Parameters
        ----------
        X
            As for `fit`; of a dask array or an xarray Dataset the result is one, computed when it is asked for.
        return_bounds : bool
            Also by how much each can miss the exact minimiser's, proven; of a model of all samples.

        Returns
        -------
        decisions, or (decisions, bounds)
            (r,) or (r, C) each.
        """
        found = self._predicted(X, "decision", *(("bounds",) if return_bounds else ()))
        return found if return_bounds else found[0]

    def predict(self, X: Any, return_certified: bool = False) -> Any:
        """Labels, (r,), in the form in which they were given: the likeliest class.

        Parameters
        ----------
        X
            As for `decision_function`.
        return_certified : bool
            Also whether each label is proven to be that of the exact minimiser; of a model of all samples.

        Returns
        -------
        labels, or (labels, certified)
            (r,) each.
        """
        found = self._predicted(X, "label", *(("certified",) if return_certified else ()))
        return found if return_certified else found[0]

    def predict_proba(self, X: Any, return_intervals: bool = False) -> Any:
        """Probabilities of the classes, (r, C), in the order of `classes_`; rows sum to one.

        Parameters
        ----------
        X
            As for `decision_function`.
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
        found = self._predicted(X, "probability", *ends)
        return found if return_intervals else found[0]

    def predict_log_proba(self, X: Any) -> Any:
        """Logarithms of `predict_proba`."""
        return np.log(self.predict_proba(X))
