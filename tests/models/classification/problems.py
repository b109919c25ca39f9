"""Small labelled problems, of which trainers' tests have their own kinds; and builders of samples.

Small labelled problems, trained by the public path, beside decisions of the exact minimiser.

Small labelled problems, trained by the public path, beside decisions of the exact LS-SVM.

Small labelled problems, trained on a basis, and the exact minimiser over all functions by dense algebra.

Figures of labels that are all in memory, as `ClassTally` has them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import worker_cache
from dkgp.data import ClassifierRecord, Dataset, memory_classifier
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.data.types import FloatArray, IntArray
from dkgp.kernels import Kernel, SquaredExponential
from dkgp.models.classification.basis import BasisSettings, TrainedOnBasis, train_on_basis
from dkgp.models.classification.certificate import certified_decisions, certified_labels
from dkgp.models.classification.exact import ExactSettings, TrainedExact, train_exact
from dkgp.models.classification.labels import LabelledData, Labels, decided
from dkgp.models.classification.likelihoods import Likelihood, LikelihoodName
from dkgp.models.classification.logistic import RiskSettings, TrainedLogistic, train_logistic
from dkgp.models.classification.metrics import ClassMetrics, ClassTally, mean_area
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.prediction.posterior import Columns
from dkgp.operators.block_tasks import BlockContext
from tests.models.classification.references import dense_decisions, digits_decisions, digits_minimiser, long_minimiser
from tests.models.exact_gp import mp
from tests.models.posteriors import class_posterior
from tests.solvers.basis_risk.dense import dense_minimum
from tests.watching import in_context


class Problem:
    """Problem derived from raw inputs (n, d), codes (n,) and raw test inputs (r, d)."""

    X: np.ndarray
    codes: np.ndarray
    T: np.ndarray
    weights: np.ndarray | None
    n_classes: int | None = None

    @cached_property
    def dataset(self) -> Dataset:
        return memory_dataset(self.X, self.codes.astype(np.float64))

    @cached_property
    def labels(self) -> Labels:
        n_classes = self.n_classes or max(2, int(self.codes.max()) + 1)
        return Labels(tuple(f"c{code}" for code in range(n_classes)), self.codes)

    @property
    def data(self) -> LabelledData:
        return LabelledData(self.dataset, self.labels, self.weights)

    @cached_property
    def tests(self) -> np.ndarray:
        return np.asarray(self.dataset.standardisation.inputs(self.T))


def digit_ratios(decisions: np.ndarray, bounds: np.ndarray, exact: list[list[Any]]) -> np.ndarray:
    """Error over bound of each decision, by 50 digits: (r, t)."""
    return np.array(
        [
            [float(abs(mp.mpf(float(f)) - true) / mp.mpf(float(b))) for f, b, true in zip(*rows, strict=True)]
            for rows in zip(decisions, bounds, exact, strict=True)
        ]
    )


def noisy_sine(rng: np.random.Generator, n: int = 150, classes: int = 2) -> tuple[Dataset, Labels]:
    """Classes by a sine of the first of three features, with logistic noise."""
    X = rng.standard_normal((n, 3))
    latent = 3.0 * np.sin(2.0 * X[:, 0]) + rng.logistic(size=n)
    codes = np.digitize(latent, np.quantile(latent, np.linspace(0.0, 1.0, classes + 1)[1:-1])).astype(np.int64)
    return memory_dataset(X, codes.astype(np.float64)), Labels(tuple("abcd"[:classes]), codes)


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
    def predicted(self) -> Columns:
        return class_posterior(self.record, f"risk-{next(_RUNS)}", threads=1)(self.T)

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
        assert miss < 1e-18 * found["decision_error_bound"].min() + 1e-30, "the reference is not exact enough"
        return digit_ratios(found["decision"], found["decision_error_bound"], exact)

    def long_errors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Errors beyond what the reference may miss, bounds, and which certified labels are wrong."""
        assert isinstance(self.kernel, SquaredExponential)
        exact, miss = long_minimiser(*self.reference)
        found = self.predicted
        wrong = (found["certified"] > 0.0) & (decided(found["decision"]) != decided(exact))
        return np.abs(found["decision"] - exact) - miss, found["decision_error_bound"], wrong


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


KERNEL = SquaredExponential((0.3, 0.3, 0.3))


def samples(rng: np.random.Generator, n: int = 300, n_classes: int = 2) -> tuple[Dataset, Labels]:
    """A data set in memory, and labels that overlap."""
    X = rng.standard_normal((n, 3))
    score = X[:, 0] + np.sin(2.0 * X[:, 1]) + 0.4 * rng.standard_normal(n)
    codes = np.digitize(score, np.quantile(score, np.linspace(0, 1, n_classes + 1)[1:-1]))
    dataset = memory_dataset(X, codes.astype(np.float64))
    return dataset, Labels(tuple(f"c{code}" for code in range(n_classes)), codes)


def trained(
    dataset: Dataset,
    labels: Labels,
    *,
    kernel: Kernel = KERNEL,
    link: Any = "logit",
    multi_class: Any = "ovr",
    size: int = 30,
    threads: int = 2,
    settings: dict[str, Any] | None = None,
    weights: np.ndarray | None = None,
    **more: Any,
) -> TrainedOnBasis:
    """Train on a basis in this process."""
    executor = LocalExecutor(threads)
    try:
        return train_on_basis(
            LabelledData(dataset, labels, weights),
            Hyperparameters(kernel, 1.0),
            in_context(executor, more),
            BasisSettings(size, **{"tolerance": 1e-8, **(settings or {})}),
            likelihood=Likelihood.of(link, multi_class, labels.n_classes),
            **more,
        )
    finally:
        executor.close()


def exact_decisions(
    dataset: Dataset,
    labels: Labels,
    tests: np.ndarray,
    kernel: Kernel,
    likelihood: Likelihood,
    regularisation: float,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """The minimiser over all functions at standardised inputs: by the eigenvectors of K that rounding leaves."""
    X = dataset.inputs(0, dataset.n_samples)
    values, vectors = np.linalg.eigh(kernel(X, X))
    kept = values > 1e-13 * values[-1]
    features = vectors[:, kept] * np.sqrt(values[kept])
    each = np.ones(len(X)) if weights is None else weights
    targets = likelihood.targets(labels)
    _, found = dense_minimum(features, targets, likelihood.loss, regularisation, each, False)
    alpha = -each[:, None] * likelihood.loss.slope(targets, found) / regularisation
    return np.asarray(kernel(tests, X) @ alpha)


def class_metrics(
    classes: Iterable[str],
    codes: IntArray,
    predicted: IntArray,
    *,
    decisions: FloatArray | None = None,
    abstain: bool = False,
    **beside: Any,
) -> ClassMetrics:
    """Measure all at once; `decisions` (n, t) are for the area under the curve, the others are those of a tally."""
    tally = ClassTally(tuple(classes), abstain)
    tally.add(codes, predicted, **beside)
    if decisions is None:
        return tally.metrics()
    kept = beside["certified"] if abstain else np.ones(len(codes), dtype=bool)
    return tally.metrics(mean_area(codes[kept], lambda column: decisions[kept, column], decisions.shape[1]))
