"""Small problems with their exact predictive variances, in more digits than float64 has.

The reference shares nothing with dkgp: kernel values from their formula, and a Cholesky elimination written out. In
extended precision (`np.longdouble`) where there is one; in 50 decimal digits for a few dozen samples.
"""

from __future__ import annotations

import decimal
import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dkgp.kernels import Features, SquaredExponential
from dkgp.models.rounding import EPS
from dkgp.models.variance.batch import BatchOptions, BatchVariance, solve_batch
from dkgp.models.variance.nystrom import FactorSource, NystromFactor
from dkgp.operators import ArrayInputs
from dkgp.operators.block_tasks import BlockContext

FloatArray = np.ndarray
Long = np.longdouble
_RUNS = itertools.count()


@dataclass(frozen=True, eq=False)
class VarianceProblem:
    """Training and test inputs, standardised, with kernel and noise.

    Attributes
    ----------
    X, T : (n, d) and (t, d)
    kernel : SquaredExponential
    noise_variance : float
    """

    X: FloatArray
    T: FloatArray
    kernel: SquaredExponential
    noise_variance: float

    @property
    def n(self) -> int:
        return len(self.X)

    @cached_property
    def exact(self) -> np.ndarray:
        """Variances of the function, without the noise: (t,) longdouble."""
        K = long_kernel(self.X, self.X, self.kernel)
        K[np.diag_indices(self.n)] += Long(self.noise_variance)
        R = long_kernel(self.X, self.T, self.kernel)
        explained = np.zeros(len(self.T), Long)
        for j in range(self.n):
            pivot, row = K[j, j], R[j].copy()
            assert pivot > 0.0, "the reference has too few digits for this problem"
            explained += row * row / pivot
            share = K[j + 1 :, j] / pivot
            K[j + 1 :, j + 1 :] -= np.outer(share, K[j + 1 :, j])
            R[j + 1 :] -= np.outer(share, row)
        return Long(self.kernel.variance) - explained

    def exact_of(self, latent: bool) -> np.ndarray:
        """Return the exact variances that the intervals must contain: (t,) longdouble."""
        return self.exact if latent else self.exact + Long(self.noise_variance)

    def source(self, landmarks: Any, **options: Any) -> FactorSource:
        # Features are cached by the name of the run, so no two may share one.
        context = BlockContext(f"variance problem {next(_RUNS)}", ArrayInputs(self.X), self.kernel, self.n)
        return FactorSource(context, self.noise_variance, self.X[landmarks], **options)

    def factor(self, landmarks: Any, **options: Any) -> NystromFactor:
        return NystromFactor.of(self.source(landmarks, **options))

    def assert_holds(self, bounds: BatchVariance, latent: bool = False, exact: np.ndarray | None = None) -> None:
        """The interval contains the exact variance of every sample."""
        truth = self.exact_of(latent) if exact is None else exact
        above, below = bounds.lower.astype(Long) - truth, truth - bounds.upper.astype(Long)
        # What the reference itself may have lost.
        digit = 0.0 if exact is not None else 1e-18 * self.kernel.variance
        assert above.max() <= digit, f"lower bound of sample {int(above.argmax())} is too high by {above.max():.3g}"
        assert below.max() <= digit, f"upper bound of sample {int(below.argmax())} is too low by {below.max():.3g}"
        assert (bounds.lower <= bounds.upper).all()
        assert (bounds.lower >= (0.0 if latent else self.noise_variance)).all()
        prior = self.kernel.variance + (0.0 if latent else self.noise_variance)
        assert (bounds.upper <= prior * (1.0 + 1e-10)).all()


def long_kernel(A: FloatArray, B: FloatArray, kernel: SquaredExponential) -> np.ndarray:
    """K(A, B) in extended precision."""
    left, right = A.astype(Long), B.astype(Long)
    distance = np.zeros((len(A), len(B)), Long)
    for feature, gamma in enumerate(kernel.gamma):
        distance += Long(gamma) * (left[:, None, feature] - right[None, :, feature]) ** 2
    return Long(kernel.variance) * np.exp(-distance)


def exact_in_50_digits(problem: VarianceProblem) -> list[decimal.Decimal]:
    """Variances of the function, for a few dozen samples at most."""
    number = decimal.Decimal
    with decimal.localcontext() as context:
        context.prec = 50
        gamma, variance = [number(g) for g in problem.kernel.gamma], number(problem.kernel.variance)
        rows = [[number(float(value)) for value in row] for row in problem.X]

        def k(a: list[decimal.Decimal], b: list[decimal.Decimal]) -> decimal.Decimal:
            distance = sum((g * (u - v) ** 2 for g, u, v in zip(gamma, a, b, strict=True)), number(0))
            return variance * (-distance).exp()

        noise = number(problem.noise_variance)
        K = [[k(a, b) + (noise if i == j else 0) for j, b in enumerate(rows)] for i, a in enumerate(rows)]
        tests = [[number(float(value)) for value in row] for row in problem.T]
        R = [[k(a, b) for b in tests] for a in rows]
        left = [variance] * len(tests)
        for j in range(problem.n):
            left = [value - r * r / K[j][j] for value, r in zip(left, R[j], strict=True)]
            for i in range(j + 1, problem.n):
                share = K[i][j] / K[j][j]
                K[i] = [a - share * b for a, b in zip(K[i], K[j], strict=True)]
                R[i] = [a - share * b for a, b in zip(R[i], R[j], strict=True)]
        return left


def query_inputs(X: FloatArray, rng: np.random.Generator, fresh: int = 6) -> FloatArray:
    """Return inputs like the training samples, equal to some, close to some, and far from all."""
    some = X[rng.integers(0, len(X), 4)]
    kinds = [rng.normal(size=(fresh, X.shape[1])), some, some[:2] + 1e-3 * rng.normal(size=(2, X.shape[1]))]
    return np.concatenate([*kinds, np.full((1, X.shape[1]), 60.0)])


def draw(
    seed: int,
    n: int,
    d: int,
    *,
    gamma: float,
    noise: float,
    variance: float = 1.0,
    kind: str = "normal",
    fresh: int = 6,
) -> VarianceProblem:
    """A problem whose noise variance is `noise` times the amplitude and whose gammas sum to about `gamma`."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    if kind == "duplicates":
        X = X[rng.integers(0, max(1, n // 3), n)]
    elif kind == "clusters":
        X = rng.normal(size=(3, d))[rng.integers(0, 3, n)] + 1e-4 * X
    elif kind == "outliers":  # a third of them far out, close together
        X = np.where(np.arange(n)[:, None] % 3 == 0, 100.0 * X[:1] + 1e-2 * X, X)
    elif kind == "grid":
        X = np.round(2.0 * X) / 2.0
    gammas = gamma / d * rng.uniform(0.3, 2.0, d)
    kernel = SquaredExponential(tuple(float(g) for g in gammas), variance)
    return VarianceProblem(X, query_inputs(X, rng, fresh), kernel, noise * variance)


class Coarse:
    """Kernel values off by a relative `share`, in one of the directions for each use: float64 with half its digits.

    Parameters
    ----------
    factor : NystromFactor
        Whose evaluator this stands in for.
    share : float
    of_landmarks, of_tests, of_samples : float
        Signs, for products with columns of the landmarks, of the test samples, and of the training samples.
    n_tests : int
        Tells test samples from training samples.
    """

    def __init__(
        self,
        factor: NystromFactor,
        share: float,
        *,
        of_landmarks: float,
        of_tests: float,
        of_samples: float = 0.0,
        n_tests: int = 0,
    ) -> None:
        self._evaluator, self._landmarks, self._n_tests = factor.evaluator, factor.landmarks, n_tests
        self._landmark_share, self._test_share = 1.0 + share * of_landmarks, 1.0 + share * of_tests
        self._sample_share = 1.0 + share * of_samples
        self.kernel, self.prepare = factor.evaluator.kernel, factor.evaluator.prepare
        self.row_errors = factor.evaluator.row_errors
        # And the bounds know.
        factor.entry_error = max(factor.entry_error, share / EPS)

    def tile(self, A: Features, B: Features) -> FloatArray:
        share = self._landmark_share if B is self._landmarks else self._sample_share
        if B.n == self._n_tests:
            share = self._test_share
        return np.asarray(self._evaluator.tile(A, B) * share)


def solve(problem: VarianceProblem, factor: NystromFactor, **options: Any) -> BatchVariance:
    """The batch of all the problem's test inputs, as a task would do it."""
    inputs = options.pop("inputs", problem.T)
    preconditioner = options.pop("preconditioner", None)
    return solve_batch(factor, inputs, BatchOptions(**{"gap": 0.02, "max_passes": 20.0, **options}), preconditioner)


# Kinds of problems, easy and hard.
KINDS = {
    "smooth": draw(1, 150, 3, gamma=0.1, noise=0.05),
    "rough": draw(2, 150, 5, gamma=8.0, noise=0.1),
    "one feature": draw(3, 120, 1, gamma=0.5, noise=1e-4),
    "many features": draw(4, 120, 21, gamma=1.0, noise=0.02),
    "duplicates": draw(5, 120, 3, gamma=1.0, noise=0.01, kind="duplicates"),
    "clusters": draw(6, 120, 4, gamma=1.0, noise=1e-3, kind="clusters"),
    "grid": draw(7, 120, 2, gamma=0.5, noise=1e-3, kind="grid"),
    "large noise": draw(8, 120, 3, gamma=2.0, noise=30.0),
    "tiny noise": draw(9, 150, 3, gamma=1.0, noise=1e-6),
    "tinier noise": draw(10, 60, 2, gamma=0.3, noise=1e-8),
    "small amplitude": draw(11, 150, 3, gamma=1.0, noise=0.05, variance=1e-3),
    "large amplitude": draw(12, 150, 3, gamma=1.0, noise=0.05, variance=1e4),
    "one sample": draw(13, 1, 2, gamma=1.0, noise=0.1),
    "two equal samples": draw(14, 2, 2, gamma=1.0, noise=0.1, kind="duplicates"),
}
