"""Each term of the bound by itself, on cases in which it is nearly all there is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.kernels import SquaredExponential
from dkgp.models.classification.certificate import DecisionCertificate, certified_decisions
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.block_tasks import BlockContext
from tests.models.classification.exact.dense_lssvm import Approximation
from tests.models.exact_gp import entry, mp, numbers


@dataclass
class Case:
    """A kernel matrix by features, K = Z Z', and a test sample; what is solved for is off by chosen residuals."""

    rng: np.random.Generator
    n: int
    rank: int

    def __post_init__(self) -> None:
        rng = self.rng
        self.Z = rng.standard_normal((self.n, self.rank)) * 10.0 ** rng.uniform(-2, 1, self.rank)
        if rng.uniform() < 0.4:
            self.Z[:, 0] = 10.0 ** rng.uniform(-1, 1)  # a constant
        self.z = np.zeros(self.rank) if rng.uniform() < 0.3 else self.Z[0] * rng.uniform(0, 2, self.rank)
        if rng.uniform() < 0.2:
            self.z, self.Z = self.Z[0].copy(), np.repeat(self.Z[:1], self.n, axis=0)
        self.noise = 10.0 ** rng.uniform(-2, 1) * 10.0 ** (rng.uniform(-1, 1, self.n) * rng.integers(0, 2))
        self.kbar = self.Z @ self.Z.T + np.diag(self.noise)
        self.kx, self.y = self.Z @ self.z, np.where(rng.uniform(size=self.n) < 0.5, 1.0, -1.0)
        bordered = np.zeros((self.n + 1, self.n + 1))
        bordered[:-1, :-1], bordered[-1, :-1], bordered[:-1, -1] = self.kbar, 1.0, 1.0
        self.bordered = bordered

    def direction(self) -> np.ndarray:
        """A residual: what Cauchy's inequality is an equality for, of the decision or of the ones; or any."""
        rng, choice = self.rng, self.rng.integers(5)
        if choice == 0:
            found = self.noise * np.linalg.solve(self.bordered, np.append(self.kx, 1.0))[:-1]
        elif choice == 1:
            found = self.noise * np.linalg.solve(self.kbar, self.kx)
        elif choice == 2:
            found = np.linalg.eigh(self.kbar)[1][:, -1]
        elif choice == 3:
            found = self.noise * np.linalg.solve(self.kbar, np.ones(self.n))
        else:
            found = rng.standard_normal(self.n)
        length = math.sqrt(float((found**2 / self.noise).sum()))
        return np.zeros(self.n) if length == 0.0 else found / length * rng.choice([-1.0, 1.0])

    def error_and_bound(self) -> tuple[float, float]:
        rng = self.rng
        residuals = np.column_stack(
            [self.direction() * 10.0 ** rng.uniform(-3, 0), self.direction() * rng.choice([0.0, 1e-3, 0.1, 1.0, 10.0])]
        )
        right = np.column_stack([self.y, np.ones(self.n)])
        solved = np.linalg.solve(self.kbar, right - residuals)
        total = solved[:, 1].sum()
        intercept = np.array([solved[:, 0].sum() / total if abs(total) > 1e-6 else 0.3])
        intercept += rng.choice([0.0, 0.0, 0.01])
        alpha = solved[:, :1] - solved[:, 1:] * intercept
        exact = np.append(self.kx, 1.0) @ np.linalg.solve(self.bordered, np.append(self.y, 0.0))
        decision = self.kx @ alpha + intercept
        certificate = DecisionCertificate.of(
            alpha,
            intercept,
            Approximation(solved, -residuals),
            self.noise,
            np.einsum("ij,ij->i", self.Z, self.Z),
            np.ones(self.n),
        )
        prior, ones = np.array([self.z @ self.z]), np.array([self.kx @ solved[:, 1]])
        bound = certificate.decision_error_bound(decision[None], ones, prior, np.ones(1))
        return abs(float(decision[0] - exact)), float(bound[0, 0])


def test_residuals_of_the_worst_directions_are_within_the_bound_and_reach_it() -> None:
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(1000):
        error, bound = Case(rng, int(rng.integers(2, 12)), int(rng.integers(1, 4))).error_and_bound()
        assert error <= bound * (1.0 + 1e-7) + 1e-10
        ratios.append(error / bound)
    assert max(ratios) > 0.999


def test_roundings_of_the_gradient_alone(rng: np.random.Generator) -> None:
    """A gradient that comes out as zero, of coefficients that cancel: the residual there is is all rounding."""
    n, noise, kernel = 40, 1e-3, SquaredExponential((1e-4, 1e-4))
    X = rng.normal(size=(n, 2))
    solved = rng.normal(size=(n, 2)) * 1e9
    solved[:, 0] *= np.sign(rng.normal(size=n))
    executor = LocalExecutor(1)
    with BlockedKernelOperator(kernel, noise, ArrayInputs(X), executor) as operator:
        right, errors = operator.matmat(solved), operator.row_errors()
    executor.close()
    certificate = DecisionCertificate.of(
        solved[:, :1], np.zeros(1), Approximation(solved, np.zeros((n, 2))), noise, 1.0, errors
    )
    rows = numbers(X)
    matrix = [[entry(kernel, a, b) + (mp.mpf(noise) if a is b else 0) for b in rows] for a in rows]
    lengths = []
    for column in range(2):
        true = [
            mp.fsum(value * mp.mpf(float(weight)) for value, weight in zip(row, solved[:, column], strict=True))
            - mp.mpf(float(goal))
            for row, goal in zip(matrix, right[:, column], strict=True)
        ]
        lengths.append(float(mp.sqrt(mp.fsum(value**2 for value in true) / mp.mpf(noise))))
    assert 0.0 < lengths[0] <= certificate.residual[0] <= 1e4 * lengths[0]
    assert 0.0 < lengths[1] <= certificate.ones_residual <= 1e4 * lengths[1]


def test_roundings_of_the_decision_alone(rng: np.random.Generator) -> None:
    """Of a certificate without any residual, the bound is what k_x'alpha + b rounds."""
    n, kernel = 60, SquaredExponential((1e-3, 1e-3))
    X, T = rng.normal(size=(n, 2)), rng.normal(size=(20, 2))
    alpha, intercept = rng.normal(size=(n, 2)) * 1e7, np.array([0.3, -1e9])
    errors = np.full(n, 10.0)
    certificate = DecisionCertificate.of(
        alpha, intercept, Approximation(np.zeros((n, 3)), np.zeros((n, 3))), 1.0, 1.0, errors
    )
    bare = replace(certificate, residual=(0.0, 0.0), imbalance=(0.0, 0.0))
    context = BlockContext("roundings", ArrayInputs(X), kernel, n)
    decisions, bounds = certified_decisions(context, bare, alpha, np.zeros(n), intercept, T)
    ratios = []
    for x, found, bound in zip(numbers(T), decisions, bounds, strict=True):
        for column in range(2):
            true = mp.mpf(float(intercept[column])) + mp.fsum(
                entry(kernel, row, x) * mp.mpf(float(alpha[i, column])) for i, row in enumerate(numbers(X))
            )
            ratios.append(float(abs(true - mp.mpf(float(found[column]))) / mp.mpf(float(bound[column]))))
    assert 1e-4 < max(ratios) <= 1.0
