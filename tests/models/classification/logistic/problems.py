"""Small labelled problems, trained by the public path, beside decisions of the exact minimiser."""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.data import ClassifierRecord, memory_classifier
from dkgp.kernels import Kernel, SquaredExponential
from dkgp.models.classification.labels import decided
from dkgp.models.classification.likelihoods import Likelihood, LikelihoodName
from dkgp.models.classification.logistic import RiskSettings, TrainedLogistic, train_logistic
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.prediction.class_predictor import ClassPredicted, ClassPredictor
from tests.models.classification.logistic.dense_risk import digits_minimiser, long_minimiser
from tests.models.classification.problems import Problem, digit_ratios
from tests.watching import in_context

_RUNS = itertools.count()


@dataclass(eq=False)
class RiskProblem(Problem):
    """Raw inputs (n, d), codes (n,), raw test inputs (r, d), kernel of the standardised ones, likelihood and lambda."""

    X: np.ndarray
    codes: np.ndarray
    T: np.ndarray
    kernel: Kernel
    regularisation: float
    name: LikelihoodName = "logit"
    weights: np.ndarray | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    n_classes: int | None = None

    @cached_property
    def likelihood(self) -> Likelihood:
        return Likelihood(self.name, self.labels.n_classes)

    @cached_property
    def trained(self) -> TrainedLogistic:
        settings = dict(self.settings)
        with closing(LocalExecutor(1)) as executor:
            return train_logistic(
                self.data,
                Hyperparameters(self.kernel, 1.0),
                in_context(executor, settings),
                RiskSettings(self.likelihood, self.regularisation, **settings),
            )

    @cached_property
    def record(self) -> ClassifierRecord:
        return memory_classifier(self.trained.record(self.data), self.dataset)

    @cached_property
    def predicted(self) -> ClassPredicted:
        return ClassPredictor(self.record, f"risk-{next(_RUNS)}", threads=1)(self.T)

    @property
    def reference(self) -> tuple[Any, ...]:
        inputs, y = self.dataset.inputs(0, len(self.X)), self.likelihood.targets(self.labels)
        return inputs, y, self.tests, self.kernel, self.name, self.regularisation, self.weights

    @cached_property
    def digits(self) -> tuple[list[list[Any]], float]:
        """The exact minimiser's decisions, and by how much these may miss."""
        return digits_minimiser(*self.reference)

    def digit_ratios(self) -> np.ndarray:
        """Error over bound of each decision, by 50 digits: (r, t)."""
        exact, miss = self.digits
        found = self.predicted
        assert miss < 1e-18 * found.bounds.min() + 1e-30, "the reference is not exact enough"
        return digit_ratios(found.decision, found.bounds, exact)

    def long_errors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Errors beyond what the reference may miss, bounds, and which certified labels are wrong."""
        assert isinstance(self.kernel, SquaredExponential)
        exact, miss = long_minimiser(*self.reference)
        found = self.predicted
        wrong = found.certified & (decided(found.decision) != decided(exact))
        return np.abs(found.decision - exact) - miss, found.bounds, wrong
