"""Base of classifiers: decisions, labels in the form in which they were given, probabilities, keeping."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from dkgp.cluster import BlockExecutor
from dkgp.data.classes import class_name
from dkgp.errors import InputError
from dkgp.estimators.base import KernelEstimator
from dkgp.estimators.classification.labels import (
    LabelledSet,
    classes_from_json,
    classes_to_json,
    labelled_set,
    true_labels,
)
from dkgp.estimators.classification.outputs import class_predictions
from dkgp.estimators.fitted import Fitted, FittedClassifier, Workspace
from dkgp.estimators.parameters import (
    AllowedError,
    CheckedElsewhere,
    Positive,
    PositiveOrNone,
    SubsetSize,
    check_parameters,
    check_value,
)
from dkgp.estimators.scikit_learn import ClassifierMixin, ConvergenceWarning, available_if, check_is_fitted, seed_of
from dkgp.estimators.settings import about_fit, executor_for, hyperparameters_for, shortfall_of_tuning
from dkgp.estimators.tables import computed
from dkgp.estimators.training_set import outer_client
from dkgp.estimators.values import weights_of_score
from dkgp.kernels import Kernel
from dkgp.models import Hyperparameters
from dkgp.models.classification.calibration import Calibration
from dkgp.models.classification.exact import DECISION_TOLERANCE
from dkgp.models.classification.hyperparameters import LabelTuning, tune_labels
from dkgp.models.classification.labels import LabelledData, label_weights
from dkgp.models.classification.near import tune_labels_by_neighbours
from dkgp.models.classification.trained import TrainedClassifier
from dkgp.models.context import RunContext
from dkgp.models.sparse.bound.search import BASIS_SIZES
from dkgp.models.tuning.likelihood_search import SearchSettings
from dkgp.models.tuning.problem import Choices
from dkgp.models.tuning.tasks import LabelLikelihood
from dkgp.operators.base import FloatArray
from dkgp.operators.product_error import ProductError


@dataclass(eq=False, repr=False, kw_only=True)
class KernelClassifier(ClassifierMixin, KernelEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """Base of classifiers; parameters and attributes as of `LSSVC`."""

    class_weight: CheckedElsewhere = None

    _form: ClassVar[str]  # of the models that it trains and loads
    _further_weights: ClassVar[tuple[str, ...]] = ()  # what class_weight= takes beside what all classifiers do
    # What can be relied on where training stopped short.
    _holds: ClassVar[str] = "What is proven of it holds"
    _fitted: FittedClassifier = field(init=False)

    # ------------------------------------------------------------------------------------------------------- training

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """Read the training set, tune, train, keep: `fit` of every classifier."""
        check_parameters(self)
        seed = seed_of(self.random_state)
        self._check_settings(seed)
        workspace = Workspace(self.store)
        training_set = labelled_set(self, X, y, sample_weight, workspace)
        data = LabelledData(training_set.dataset, training_set.labels, self._weights(training_set))
        hyperparameters = self._kernel_and_noise(training_set, seed)
        with executor_for(self.client, data.dataset) as executor:
            trained = self._trained(data, hyperparameters, self._context(executor), seed)
        if hyperparameters is None:
            hyperparameters = Hyperparameters(trained.kernel, trained.noise_variance)
        record = trained.record(data)
        if record.is_sparse:  # It needs no training set: a temporary folder can go, now that all is read.
            workspace = Workspace(self.store)
        about = about_fit(self, training_set.dataset, hyperparameters, several=False)
        about["classes"] = classes_to_json(training_set.classes)
        self._take(FittedClassifier.of(record, training_set.dataset, workspace, about))
        if (shortfall := shortfall_of_tuning(hyperparameters)) is not None:
            warnings.warn(shortfall, ConvergenceWarning, stacklevel=3)
        if not record.summary["converged"]:
            message = f"not converged: {record.summary['reason']}; {record.summary['advice']}. {self._holds}"
            warnings.warn(message, ConvergenceWarning, stacklevel=3)
        elif (beyond := record.summary.get("beyond_tolerance")) is not None:
            warnings.warn(beyond, ConvergenceWarning, stacklevel=3)
        return self

    @abstractmethod
    def _check_settings(self, seed: int) -> None:
        """Refuse settings that make no sense, before anything is stored."""

    @abstractmethod
    def _trained(
        self, data: LabelledData, hyperparameters: Hyperparameters | None, context: RunContext, seed: int
    ) -> TrainedClassifier:
        """Train on a checked training set."""

    def _context(self, executor: BlockExecutor) -> RunContext:
        """Surroundings of the training run."""
        return RunContext(executor)

    def _weights(self, training_set: LabelledSet) -> FloatArray | None:
        """Weights of the samples, of mean one, by class and by sample; None where all count the same."""
        by_class = self.class_weight
        if isinstance(by_class, Mapping):
            for label, weight in by_class.items():
                check_value(f"class_weight[{label!r}]", Positive, weight)
            by_class = {class_name(label): weight for label, weight in by_class.items()}
        elif by_class is not None and by_class != "balanced":
            words = "".join(f'"{word}", ' for word in self._further_weights)
            raise InputError(f'class_weight= takes {words}"balanced" or weights by class; got {by_class!r}')
        return label_weights(training_set.labels, by_class, training_set.sample_weight)

    @abstractmethod
    def _kernel_and_noise(self, training_set: LabelledSet, seed: int) -> Hyperparameters | None:
        """The hyperparameters of the settings, or tuned ones; None where training finds them on the way."""

    def _take(self, fitted: Fitted) -> None:
        super()._take(fitted)
        assert isinstance(fitted, FittedClassifier)
        self.classes_ = classes_from_json(fitted.about.get("classes"), fitted.record.classes)

    @classmethod
    def _opened(cls, url: str) -> FittedClassifier:
        return FittedClassifier.load(url, Workspace(None), cls._form)

    # ----------------------------------------------------------------------------------------------------- predictions

    def _predicted(self, X: Any, *names: str) -> tuple[Any, ...]:
        """Predictions by the names of `class_predictions`."""
        check_is_fitted(self)
        predictions = class_predictions(self._fitted, self._inputs(X), names, self.classes_, outer_client(self))
        return tuple(predictions[name] for name in names)

    def decision_function(self, X: Any) -> Any:
        """Decisions of the machines: of two classes positive for the second, otherwise one for each class.

        Parameters
        ----------
        X
            As for `fit`; of a dask array or an xarray Dataset the result is one, computed when it is asked for.

        Returns
        -------
        (r,) or (r, C)
        """
        return self._predicted(X, "decision")[0]

    def predict(self, X: Any) -> Any:
        """Labels, (r,), in the form in which they were given: the class of the largest decision.

        Of a pandas DataFrame they are a Series with its index.
        """
        return self._predicted(X, "label")[0]

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Share of right labels; lazy inputs are computed.

        Parameters
        ----------
        X, y
            As for `fit`; labels of a dataset store are matched by the classes' names.
        sample_weight : (r,) array_like, optional
        """
        from sklearn.metrics import accuracy_score

        check_is_fitted(self)
        truth = true_labels(X, y, self.classes_, self._fitted.record.classes)
        weights = weights_of_score(X, sample_weight)
        return float(accuracy_score(truth, np.asarray(computed(self.predict(X))), sample_weight=weights))


def _has_probabilities(estimator: Any) -> bool:
    """True if there is `predict_proba`; another answer than True would be an error of its own."""
    if not estimator.probability:
        raise AttributeError("there are no probabilities: set probability=True and fit again")
    return True


@dataclass(eq=False, repr=False, kw_only=True)
class CalibratedClassifier(KernelClassifier):
    """Base of least-squares machines, whose decisions a calibration turns into probabilities."""

    noise_variance: CheckedElsewhere = None
    probability: bool = True

    def _take(self, fitted: Fitted) -> None:
        super()._take(fitted)
        record = self._fitted.record
        self.intercept_ = record.intercept
        self.calibration_ = None if record.calibration is None else Calibration.from_json(record.calibration)

    @classmethod
    def _settings_from(cls, fitted: Fitted) -> dict[str, Any]:
        assert isinstance(fitted, FittedClassifier)
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
class CertifiedClassifier(KernelClassifier):
    """Base of classifiers with all samples in one problem: of its exact solution they prove decisions and labels."""

    optimizer: str | None = "marginal_likelihood"
    subset_size: SubsetSize = 2000
    tol: Positive = DECISION_TOLERANCE
    max_passes: PositiveOrNone = None
    product_error: AllowedError = "auto"

    def _context(self, executor: BlockExecutor) -> RunContext:
        return RunContext(executor, product_error=ProductError.of(self.product_error))

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Tune where hyperparameters are not given, train and certify.

        Parameters
        ----------
        X
            (n, d) array, data frame or dask array, xarray Dataset, or the path of a dataset store, which brings labels.
        y
            Labels: numbers or text, (n,); of a Dataset also the name of a variable.
        sample_weight : (n,) array_like, optional
            Weights of the losses; relative to each other. Samples of weight zero are left out. A store may
            bring its own.

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
            Training stopped before `tol` was reached; what is certified holds.
        """
        return self._fit(X, y, sample_weight)

    def _tuned(
        self, training_set: LabelledSet, seed: int, noise_variance: float | None, likelihood: LabelLikelihood | None
    ) -> Hyperparameters:
        """The hyperparameters of the settings, or tuned: labels of a likelihood have no noise."""

        def tune(kernel: Kernel | None, fixed: dict[str, float] | None) -> Hyperparameters:
            data = LabelledData(training_set.dataset, training_set.labels)
            if self.optimizer == "vif":
                choices, size = Choices(kernel, likelihood=likelihood), min(BASIS_SIZES["vif"], data.n)
                with executor_for(self.client, data.dataset) as executor:
                    return tune_labels_by_neighbours(data, executor, choices, SearchSettings(seed), basis_size=size)
            noise = fixed if likelihood is None else None
            settings = LabelTuning(self.subset_size, seed, kernel, fixed=noise, likelihood=likelihood)
            return tune_labels(data, settings)

        return hyperparameters_for(
            self.kernel,
            training_set.dataset,
            noise_variance=noise_variance,
            optimizer=self.optimizer,
            tune=tune,
        )

    def decision_function(self, X: Any, return_bounds: bool = False) -> Any:
        """Decisions: of two classes positive for the second, otherwise one for each class.

        Parameters
        ----------
        X
            As for `fit`; of a dask array or an xarray Dataset the result is one, computed when it is asked for.
        return_bounds : bool
            Also by how much each can miss the exact solution's, proven; of a model of all samples.

        Returns
        -------
        decisions, or (decisions, bounds)
            (r,) or (r, C) each.
        """
        predictions = self._predicted(X, "decision", *(("bounds",) if return_bounds else ()))
        return predictions if return_bounds else predictions[0]

    def predict(self, X: Any, return_certified: bool = False) -> Any:
        """Labels, (r,), in the form in which they were given: the class of the largest decision, or probability.

        Of a pandas DataFrame they are a Series with its index.

        Parameters
        ----------
        return_certified : bool
            Also whether each label is proven to be that of the exact solution; of a model of all samples.

        Returns
        -------
        labels, or (labels, certified)
            (r,) each.
        """
        predictions = self._predicted(X, "label", *(("certified",) if return_certified else ()))
        return predictions if return_certified else predictions[0]
