"""What is proven of variances where k(x, x) varies by orders of magnitude, were arithmetic much coarser than it is."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest

from dkgp.kernels import parse_kernel
from dkgp.models.variance.bounds import Queries, best_weights, factor_interval, plain_weights
from tests.models.variance.variance_problems import Coarse, Long, VarianceProblem, query_inputs, solve

D = 3
KERNELS = {
    "polynomial": "polynomial(degree=3)",
    "linear": "linear",
    "linear and rough": "linear + rbf(length_scale=0.5)",
    "product": "linear * rbf",
}


@dataclass(frozen=True, eq=False)
class VaryingProblem(VarianceProblem):
    """One whose kernel is evaluated naively, and whose first samples are far out."""

    @cached_property
    def exact(self) -> np.ndarray:
        """Variances of the function, without the noise: (t,) longdouble."""
        K = self.kernel(self.X, self.X).astype(Long) + Long(self.noise_variance) * np.eye(self.n, dtype=Long)
        R, explained = self.kernel(self.X, self.T).astype(Long), np.zeros(len(self.T), Long)
        for j in range(self.n):
            explained += R[j] * R[j] / K[j, j]
            share = K[j + 1 :, j] / K[j, j]
            R[j + 1 :] -= np.outer(share, R[j])
            K[j + 1 :, j + 1 :] -= np.outer(share, K[j + 1 :, j])
        return np.asarray(self.prior.astype(Long) - explained)

    @property
    def prior(self) -> np.ndarray:
        """k(x, x) of the test samples."""
        return self.kernel.diagonal(self.T)

    @property
    def digit(self) -> np.ndarray:
        """What the reference itself may be off by."""
        return 1e-13 * (self.prior + self.noise_variance)


def draw(name: str, noise: float = 0.05, outliers: float = 8.0) -> VaryingProblem:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(70, D))
    X[:3] *= outliers
    X[5] = 0.0
    tests = np.concatenate([query_inputs(X, rng)[:-1], np.zeros((1, D)), 10.0 * rng.normal(size=(1, D))])
    return VaryingProblem(X, tests, parse_kernel(KERNELS[name], D), noise)


@pytest.mark.parametrize("coarseness", [1e-10, 1e-7])
@pytest.mark.parametrize("name", KERNELS)
def test_the_factors_interval_allows_for_roundings(
    monkeypatch: pytest.MonkeyPatch, name: str, coarseness: float
) -> None:
    problem = draw(name)
    exact = problem.exact_of(latent=False)
    for rank, of_landmarks, of_tests in itertools.product((4, 30), (-1.0, 1.0), (-1.0, 1.0)):
        factor = problem.factor(np.arange(rank), precision="double")
        coarse = Coarse(factor, coarseness, of_landmarks=of_landmarks, of_tests=of_tests, n_tests=len(problem.T))
        monkeypatch.setattr(factor, "evaluator", coarse)
        test = Queries.of(factor, problem.T)
        for weights in (plain_weights, best_weights):
            found = factor_interval(factor, test, weights(factor, test))
            lower, upper = found.lower + problem.noise_variance, found.upper + problem.noise_variance
            assert (lower <= exact + problem.digit).all()
            assert (upper >= exact - problem.digit).all()


@pytest.mark.covering
@pytest.mark.parametrize("coarseness", [1e-10, 1e-8])
@pytest.mark.parametrize("name", KERNELS)
def test_roundings_of_a_batch_are_allowed_for(monkeypatch: pytest.MonkeyPatch, name: str, coarseness: float) -> None:
    problem = draw(name)
    exact = problem.exact_of(latent=False)
    for of_landmarks, of_tests, of_samples in itertools.product((-1.0, 1.0), repeat=3):
        factor = problem.factor(np.arange(problem.n), precision="double")
        signs = {"of_landmarks": of_landmarks, "of_tests": of_tests, "of_samples": of_samples}
        monkeypatch.setattr(factor, "evaluator", Coarse(factor, coarseness, n_tests=len(problem.T), **signs))
        for max_passes in (1, 3, 10):
            bounds = solve(problem, factor, gap=1e-12, max_passes=max_passes, factor_first=False)
            assert (bounds.lower <= exact + problem.digit).all()
            assert (bounds.upper >= exact - problem.digit).all()


@pytest.mark.covering
@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("noise", [1e-6, 1e-2, 10.0])
def test_batches_are_certified_whatever_the_noise(name: str, noise: float, precision: str) -> None:
    problem = draw(name, noise=noise, outliers=30.0)
    factor = problem.factor(np.arange(0, problem.n, 2), precision=precision)
    for latent in (False, True):
        bounds = solve(problem, factor, gap=1e-3, latent=latent)
        exact = problem.exact_of(latent)
        assert (bounds.lower <= exact + problem.digit).all()
        assert (bounds.upper >= exact - problem.digit).all()
        near = problem.prior < 100.0
        if noise >= 1e-2 and not latent and precision == "double":
            assert ((bounds.upper - bounds.lower)[near] <= 1e-3 * bounds.upper[near]).all()
