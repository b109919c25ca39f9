"""Base of classifiers: decisions, labels in the form in which they were given, probabilities, keeping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dkgp.cluster.given_client import is_in_process
from dkgp.data.classes import class_name
from dkgp.errors import InputError
from dkgp.estimators.base import KernelEstimator
from dkgp.estimators.classification.fitted import FittedClassifier
from dkgp.estimators.classification.labels import LabelledSet, classes_from_json, classes_to_json, true_labels
from dkgp.estimators.classification.outputs import class_predictions
from dkgp.estimators.fitted import Fitted
from dkgp.estimators.scikit_learn import ClassifierMixin, available_if, check_is_fitted
from dkgp.estimators.settings import about_fit, chosen_hyperparameters
from dkgp.kernels import Kernel
from dkgp.models import Hyperparameters
from dkgp.models.classification.calibration import Calibration
from dkgp.models.classification.hyperparameters import tune_labels
from dkgp.models.classification.labels import label_weights
from dkgp.operators.base import FloatArray

__all__ = ["KernelClassifier"]


def _has_probabilities(estimator: Any) -> bool:
    """True if there is `predict_proba`; another answer than True would be an error of its own."""
    if not estimator.probability:
        raise AttributeError("there are no probabilities: set probability=True and fit again")
    return True


class KernelClassifier(ClassifierMixin, KernelEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """Base of classifiers; parameters and attributes as of `LSSVC`."""

    class_weight: Any
    probability: bool

    _optimizers: ClassVar[tuple[str, ...]] = ("marginal_likelihood",)
    _fitted: FittedClassifier

    # ------------------------------------------------------------------------------------------------------- training

    def _weights(self, given: LabelledSet) -> FloatArray | None:
        """Weights of the samples, of mean one, by class and by sample; None where all count the same."""
        by_class = self.class_weight
        if isinstance(by_class, Mapping):
            by_class = {class_name(label): weight for label, weight in by_class.items()}
        elif by_class is not None and by_class != "balanced":
            raise InputError(f'class_weight= takes "balanced" or weights by class; got {by_class!r}')
        return label_weights(given.labels, by_class, given.sample_weight)

    def _found(self, given: LabelledSet, seed: int) -> Hyperparameters:
        """Hyperparameters that are given, or tuned on a subset of the labels."""

        def tuned(kernel: Kernel | None, fixed: dict[str, float] | None) -> Hyperparameters:
            about: dict[str, Any] = {"subset": self.subset_size, "seed": seed, "fixed": fixed}
            return tune_labels(given.dataset, given.labels, kernel=kernel, **about)

        return chosen_hyperparameters(
            self.kernel,
            given.dataset,
            noise_variance=self.noise_variance,
            optimizer=self.optimizer,
            optimizers=self._optimizers,
            tune=tuned,
        )

    def _about(self, given: LabelledSet, found: Hyperparameters) -> dict[str, Any]:
        """Return what a stored model says of its estimator."""
        about = about_fit(self, given.dataset, found, several=False)
        return {**about, "classes": classes_to_json(given.classes)}

    def _take(self, fitted: Fitted) -> None:
        super()._take(fitted)
        assert isinstance(fitted, FittedClassifier)
        record = fitted.record
        self.classes_ = classes_from_json(fitted.about.get("classes"), record.classes)
        self.intercept_ = record.intercept
        self.calibration_ = None if record.calibration is None else Calibration.from_json(record.calibration)

    # ----------------------------------------------------------------------------------------------------- predictions

    def _predicted(self, X: Any, *names: str) -> tuple[Any, ...]:
        """Return what is asked for, by the names of `class_predictions`."""
        check_is_fitted(self)
        client = None if self.client is None or is_in_process(self.client) else self.client
        found = class_predictions(self._fitted, self._inputs(X), names, self.classes_, client)
        return tuple(found[name] for name in names)

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

        Parameters
        ----------
        X
            As for `decision_function`.
        """
        return self._predicted(X, "label")[0]

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]  # scikit-learn ships no types
    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes, (r, C), in the order of `classes_`; rows sum to one.

        They are fitted to decisions at samples that were left out, with an offset for each class. So where two classes
        are about as likely, the label, which is the decision's, need not be the likelier one (as of scikit-learn's
        `SVC`); `classes_[predict_proba(X).argmax(axis=1)]` are the labels by probability.

        Parameters
        ----------
        X
            As for `decision_function`.

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
        return float(accuracy_score(truth, np.asarray(self.predict(X)), sample_weight=sample_weight))
