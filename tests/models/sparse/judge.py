"""A judge of sparse models in 50 digits: all that is said of one against the exact model, statement by statement."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.kernels import Kernel
from dkgp.models.sparse.certificate import SparseCertificate, certify
from dkgp.models.sparse.errors import Points
from dkgp.models.sparse.fit import Basis, SparseFit, fit_sparse
from dkgp.models.sparse.methods import METHODS
from dkgp.models.sparse.model import VarianceInterval, interval_of
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.base import noise_at
from tests.models.exact_gp import entry, mp, numbers


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
    def factor(self) -> Any:
        """L of Kbar."""
        rows, n = numbers(self.X), len(self.X)
        K = mp.matrix(n, n)
        for i in range(n):
            for j in range(i + 1):
                K[i, j] = entry(self.kernel, rows[i], rows[j])
            K[i, i] += self.each[i]
        L = mp.matrix(n, n)
        for j in range(n):
            pivot = K[j, j] - mp.fsum(L[j, k] ** 2 for k in range(j))
            assert pivot > 0, "the reference has too few digits for this problem"
            L[j, j] = mp.sqrt(pivot)
            for i in range(j + 1, n):
                L[i, j] = (K[i, j] - mp.fsum(L[i, k] * L[j, k] for k in range(j))) / L[j, j]
        return L

    def half(self, right: list[Any]) -> list[Any]:
        """L^-1 of a vector."""
        L, solved = self.factor, []
        for i, value in enumerate(right):
            solved.append((value - mp.fsum(L[i, k] * s for k, s in enumerate(solved))) / L[i, i])
        return solved

    @cached_property
    def halves(self) -> list[list[Any]]:
        """L^-1 y by target."""
        return [self.half(column) for column in self.targets]

    @cached_property
    def quadratic(self) -> list[Any]:
        """y' Kbar^-1 y by target."""
        return [mp.fsum(v * v for v in half) for half in self.halves]

    @cached_property
    def evidence(self) -> Any:
        """log p(y), summed over targets."""
        n, p = len(self.X), len(self.targets)
        determinant = 2 * mp.fsum(mp.log(self.factor[i, i]) for i in range(n))
        return -(p * (n * mp.log(2 * mp.pi) + determinant) + mp.fsum(self.quadratic)) / 2

    def exact(self, inputs: np.ndarray) -> list[tuple[list[Any], Any]]:
        """Means by target, and the variance of the function, at each input."""
        rows, found = numbers(self.X), []
        for x in numbers(inputs):
            across = self.half([entry(self.kernel, row, x) for row in rows])
            mean = [mp.fsum(a * b for a, b in zip(across, half, strict=True)) for half in self.halves]
            found.append((mean, entry(self.kernel, x, x) - mp.fsum(a * a for a in across)))
        return found

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
        rows, basis, m, n = numbers(problem.X), numbers(model.prototypes), model.m, len(problem.X)
        lower = [[mp.mpf(float(v)) for v in row] for row in model.lower]
        F = []
        for row in rows:
            solved: list[Any] = []
            for i, z in enumerate(basis):
                total = mp.fsum(lower[i][k] * s for k, s in enumerate(solved))
                solved.append((entry(problem.kernel, row, z) - total) / lower[i][i])
            F.append(solved)
        A = mp.eye(m)
        for f, s2 in zip(F, problem.each, strict=True):
            for i in range(m):
                for j in range(i + 1):
                    A[i, j] += f[i] * f[j] / s2
        for i in range(m):
            for j in range(i):
                A[j, i] = A[i, j]
        C = mp.cholesky(A)
        determinant = 2 * mp.fsum(mp.log(C[i, i]) for i in range(m)) + mp.fsum(mp.log(s2) for s2 in problem.each)
        trace = mp.fsum(
            (entry(problem.kernel, row, row) - mp.fsum(v * v for v in f)) / s2
            for row, f, s2 in zip(rows, F, problem.each, strict=True)
        )
        total = mp.zero
        for target in problem.targets:
            right = mp.matrix(
                [mp.fsum(f[i] * y / s2 for f, y, s2 in zip(F, target, problem.each, strict=True)) for i in range(m)]
            )
            half = mp.lu_solve(C, right)
            quadratic = mp.fsum(y * y / s2 for y, s2 in zip(target, problem.each, strict=True)) - mp.fsum(
                v * v for v in half
            )
            total += -(n * mp.log(2 * mp.pi) + determinant + quadratic + trace) / 2
        return problem.evidence - total
