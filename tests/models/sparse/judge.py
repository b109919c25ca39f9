"""A judge of sparse models in 50 digits: all that is said of one against the exact model, statement by statement."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.kernels import Kernel
from dkgp.models.sparse.bounds import Points
from dkgp.models.sparse.certificate import SparseCertificate, certify
from dkgp.models.sparse.model import METHODS, Basis, SparseFit, VarianceInterval, fit_sparse, interval_of
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.base import noise_at
from tests.models.exact_gp import decimals, entry, in_digits, mp, numbers, of_decimals


def forward(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    """L^-1 of each column, of decimal numbers."""
    found = right.copy()
    with in_digits():
        for j in range(len(lower)):
            found[j] /= lower[j, j]
            found[j + 1 :] -= np.multiply.outer(lower[j + 1 :, j], found[j])
    return found


@dataclass(eq=False)
class Problem:
    """Samples, targets (n, p) and test inputs as they are; noise is one number, or (n,)."""

    kernel: Kernel
    noise: Any
    X: np.ndarray
    y: np.ndarray
    T: np.ndarray

    @cached_property
    def each(self) -> list[Any]:
        """The samples' noise."""
        return [mp.mpf(float(s2)) for s2 in np.broadcast_to(np.asarray(self.noise, dtype=float), (len(self.X),))]

    @cached_property
    def targets(self) -> list[list[Any]]:
        """y by target."""
        return [[mp.mpf(float(v)) for v in column] for column in self.y.T]

    @cached_property
    def factor(self) -> np.ndarray:
        """L of Kbar: decimal numbers, zeros above its diagonal."""
        rows, n = numbers(self.X), len(self.X)
        half = [[entry(self.kernel, row, other) for other in rows[: i + 1]] for i, row in enumerate(rows)]
        K = decimals([[half[max(i, j)][min(i, j)] for j in range(n)] for i in range(n)])
        with in_digits():
            K[np.diag_indices(n)] += decimals(self.each)
            L = 0 * K
            for j in range(n):
                assert K[j, j] > 0, "the reference has too few digits for this problem"
                L[j:, j] = K[j:, j] / K[j, j].sqrt()
                K[j + 1 :, j + 1 :] -= np.multiply.outer(L[j + 1 :, j], L[j + 1 :, j])
        return L

    @cached_property
    def halves(self) -> np.ndarray:
        """L^-1 y: (n, p)."""
        return forward(self.factor, decimals(self.targets).T)

    @cached_property
    def quadratic(self) -> list[Any]:
        """y' Kbar^-1 y by target."""
        with in_digits():
            return list(of_decimals((self.halves**2).sum(axis=0)))

    @cached_property
    def evidence(self) -> Any:
        """log p(y), summed over targets."""
        n, p = len(self.X), len(self.targets)
        determinant = 2 * mp.fsum(mp.log(value) for value in of_decimals(self.factor.diagonal()))
        return -(p * (n * mp.log(2 * mp.pi) + determinant) + mp.fsum(self.quadratic)) / 2

    def exact(self, inputs: np.ndarray) -> list[tuple[list[Any], Any]]:
        """Means by target, and the variance of the function, at each input."""
        rows, tests = numbers(self.X), numbers(inputs)
        across = forward(self.factor, decimals([[entry(self.kernel, row, x) for x in tests] for row in rows]))
        with in_digits():
            means, explained = of_decimals(across.T @ self.halves), of_decimals((across**2).sum(axis=0))
        return [(mean, entry(self.kernel, x, x) - off) for mean, off, x in zip(means, explained, tests, strict=True)]

    @cached_property
    def at_tests(self) -> list[tuple[list[Any], Any]]:
        return self.exact(self.T)

    @cached_property
    def at_samples(self) -> list[tuple[list[Any], Any]]:
        return self.exact(self.X)

    def risk(self, prototypes: np.ndarray, weights: np.ndarray) -> list[Any]:
        """R of the mean k_m(x)' beta by target, K_mm without a jitter."""
        rows, basis = numbers(self.X), numbers(prototypes)
        across = [[entry(self.kernel, row, z) for z in basis] for row in rows]
        inner = [[entry(self.kernel, z, other) for other in basis] for z in basis]
        risks = []
        for target, column in zip(self.targets, weights.T, strict=True):
            beta = [mp.mpf(float(value)) for value in column]
            misfit = mp.fsum(
                (y - mp.fsum(k * b for k, b in zip(row, beta, strict=True))) ** 2 / s2
                for y, row, s2 in zip(target, across, self.each, strict=True)
            )
            length = mp.fsum(
                b * mp.fsum(k * c for k, c in zip(row, beta, strict=True)) for b, row in zip(beta, inner, strict=True)
            )
            risks.append((misfit + length) / 2)
        return risks


@dataclass(eq=False)
class Judged:
    """A sparse model of a problem, and what was said of it: `broken` names the statements that are false.

    `system` is what a choice has summed, where the fit is to take that.
    """

    problem: Problem
    method: str
    executor: BlockExecutor
    chosen: np.ndarray
    system: np.ndarray | None = None
    checked: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        problem = self.problem
        given = problem.noise if np.ndim(problem.noise) else float(problem.noise)
        self.operator = BlockedKernelOperator(problem.kernel, given, ArrayInputs(problem.X), self.executor)

    @cached_property
    def fit(self) -> SparseFit:
        basis = Basis(self.problem.X[self.chosen], self.chosen)
        return fit_sparse(self.operator, self.problem.y, basis, METHODS[self.method], self.system)

    @cached_property
    def certificate(self) -> SparseCertificate:
        return certify(self.operator, self.fit, self.problem.y, subset=self.chosen)

    @cached_property
    def interval(self) -> VarianceInterval:
        """The proven interval of the exact variance."""
        return interval_of(self.fit.model, noise_at(self.operator.noise, self.chosen), self.certificate.normal_share)

    def hold(self, what: str, claim: bool) -> None:
        """Count a statement."""
        self.checked[what] += 1
        if not claim:
            self.broken.append(what)

    def judge(self) -> Judged:
        """Judge risks, distances, variances and the evidence."""
        problem, certificate, model = self.problem, self.certificate, self.fit.model
        excess = certificate.excess
        for target, (risk, quadratic) in enumerate(
            zip(problem.risk(model.prototypes, model.weights), problem.quadratic, strict=True)
        ):
            self.hold("risk", risk <= mp.mpf(float(certificate.risk[target])))
            for name, values in certificate.least_risk.items():
                self.hold(f"least risk by {name}", mp.mpf(float(values[target])) <= quadratic / 2)
            self.hold("excess", risk - quadratic / 2 <= mp.mpf(float(excess[target])))
        self._distances()
        evidence, upper, divergence = certificate.evidence, certificate.evidence_upper, certificate.divergence
        if evidence is not None and upper is not None and divergence is not None:
            self.hold("elbo", mp.mpf(evidence.lower) <= problem.evidence)
            self.hold("evidence from above", problem.evidence <= mp.mpf(upper))
            self.hold("divergence", self.divergence() <= mp.mpf(divergence))
        return self

    def _distances(self) -> None:
        problem, certificate, model = self.problem, self.certificate, self.fit.model
        lower, upper = self.interval(problem.T)
        points = Points.of(problem.kernel, self.operator.double, problem.T)
        bound = certificate.mean_error_bound(upper, points.prior, points.errors)
        for row, mean in enumerate(model.mean(problem.T)):
            means, variance = problem.at_tests[row]
            self.hold("variance from below", mp.mpf(float(lower[row])) <= variance)
            self.hold("variance from above", variance <= mp.mpf(float(upper[row])))
            for target, value in enumerate(mean):
                self.hold("mean", abs(mp.mpf(float(value)) - means[target]) <= mp.mpf(float(bound[row, target])))
        own = model.mean(problem.X)
        for target, most in enumerate(certificate.rms_bound):
            squares = (
                (mp.mpf(float(own[row, target])) - found[0][target]) ** 2
                for row, found in enumerate(problem.at_samples)
            )
            self.hold("root mean square", mp.sqrt(mp.fsum(squares) / len(own)) <= mp.mpf(float(most)))

    def divergence(self) -> Any:
        """KL of the variational posterior from the exact one, p times: log p(y) less the bound, with the exact F.

        The bound at the weights' own best is an upper one of that at the optimum, so the difference is the divergence.
        """
        problem, model = self.problem, self.fit.model
        rows, basis, n, p = numbers(problem.X), numbers(model.prototypes), len(problem.X), len(problem.targets)
        lower, each = decimals(numbers(model.lower)), decimals(problem.each)
        F = forward(lower, decimals([[entry(problem.kernel, row, z) for row in rows] for z in basis]))
        priors, targets = decimals([entry(problem.kernel, row, row) for row in rows]), decimals(problem.targets).T
        with in_digits():
            A, right = F @ (F / each).T, F @ (targets / each[:, None])
            A[np.diag_indices(len(A))] += 1
            squares, pivots = (targets**2 / each[:, None]).sum(), []
            for j in range(len(A)):  # L D L' = A, and right' A^-1 right by it
                pivots.append(A[j, j])
                squares -= (right[j] ** 2).sum() / A[j, j]
                share = A[j + 1 :, j] / A[j, j]
                right[j + 1 :] -= np.multiply.outer(share, right[j])
                A[j + 1 :, j + 1 :] -= np.multiply.outer(share, A[j, j + 1 :])
            trace = ((priors - (F**2).sum(axis=0)) / each).sum()
        determinant = mp.fsum(mp.log(value) for value in [*of_decimals(pivots), *problem.each])
        squares, trace = of_decimals(squares), of_decimals(trace)
        return problem.evidence + (p * (n * mp.log(2 * mp.pi) + determinant + trace) + squares) / 2
