"""Small labelled problems, trained by the public path, beside decisions of the exact LS-SVM."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import worker_cache
from dkgp.kernels import Kernel
from dkgp.models.classification.certificate import certified_decisions, certified_labels
from dkgp.models.classification.exact import ExactSettings, TrainedExact, train_exact
from dkgp.models.classification.labels import decided
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.operators.block_tasks import BlockContext
from tests.models.classification.exact.dense_lssvm import dense_decisions, digits_decisions
from tests.models.classification.problems import Problem, digit_ratios

_RUNS = itertools.count()


@dataclass(eq=False)
class LabelProblem(Problem):
    """Raw inputs (n, d), codes (n,), raw test inputs (r, d), kernel and noise of the standardised ones."""

    X: np.ndarray
    codes: np.ndarray
    T: np.ndarray
    kernel: Kernel
    noise_variance: float
    weights: np.ndarray | None = None
    fit_intercept: bool = True
    settings: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def trained(self) -> TrainedExact:
        executor = LocalExecutor(1)
        try:
            return train_exact(
                self.data,
                Hyperparameters(self.kernel, self.noise_variance),
                executor,
                ExactSettings(fit_intercept=self.fit_intercept, calibrate=False, **self.settings),
            )
        finally:
            executor.close()

    @cached_property
    def predicted(self) -> tuple[np.ndarray, np.ndarray]:
        """Decisions and their bounds."""
        context = BlockContext(f"labels-{next(_RUNS)}", self.dataset, self.trained.kernel, len(self.X))
        found = self.trained
        try:
            return certified_decisions(context, found.certificate, found.alpha, found.ones, found.intercept, self.tests)
        finally:
            worker_cache().discard_run(context.run_id)

    @property
    def reference(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, Kernel, Any, bool]:
        noise: Any = self.noise_variance if self.weights is None else self.noise_variance / self.weights
        inputs = self.dataset.inputs(0, len(self.X))
        return inputs, self.labels.signs(), self.tests, self.kernel, noise, self.fit_intercept

    def digit_ratios(self) -> np.ndarray:
        """Error over bound of each decision, by 50 digits: (r, t)."""
        decisions, bounds = self.predicted
        return digit_ratios(decisions, bounds, digits_decisions(*self.reference))

    def dense_errors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Errors of the decisions by a dense float64 solve, their bounds, and which certified labels are wrong."""
        decisions, bounds = self.predicted
        exact = dense_decisions(*self.reference)
        wrong = certified_labels(decisions, bounds) & (decided(decisions) != decided(exact))
        return np.abs(decisions - exact), bounds, wrong
