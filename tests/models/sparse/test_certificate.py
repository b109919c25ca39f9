"""What is proven of sparse models, against the exact one in 50 digits, and how tight it is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkgp.cluster import LocalExecutor
from dkgp.kernels import Kernel, Linear, Matern12, Matern32, SquaredExponential
from dkgp.models.sparse.certificate import SparseCertificate, certify
from dkgp.models.sparse.errors import Points, SampleErrors
from dkgp.models.sparse.fit import Basis, SparseFit, fit_sparse
from dkgp.models.sparse.interval import interval_of
from dkgp.models.sparse.methods import METHODS
from dkgp.models.sparse.risk import descent_bound
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.base import noise_at
from dkgp.solvers import GreedyBlockCoordinateDescent, MaxPasses, solve
from tests.models.exact_gp import ExactGP, entry, mp, numbers

FLAT = SquaredExponential(gamma=(1e-3, 1e-3))
PROBLEMS: dict[str, tuple[Kernel, float]] = {
    "smooth": (SquaredExponential(gamma=(0.3, 0.5), variance=1.5), 0.05),
    "rough": (Matern12(gamma=(2.0, 2.0)), 0.1),
    "ill-conditioned": (FLAT, 1e-6),
    "little noise": (Matern32(gamma=(0.5, 0.5)), 1e-8),
    "no stationary one": (Linear(weight=(1.0, 0.5)) + SquaredExponential(gamma=(1.0, 1.0)), 0.02),
}


@dataclass(eq=False)
class Case:
    """A problem with one target, its sparse fit and certificate."""

    kernel: Kernel
    noise: float
    method: str
    executor: Any
    n: int = 36
    m: int = 12
    seed: int = 0
    by_sample: bool = False

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.X, self.T = rng.standard_normal((self.n, 2)), 1.3 * rng.standard_normal((4, 2))
        self.y = np.sin(2.0 * self.X[:, :1]) + np.sqrt(self.noise) * rng.standard_normal((self.n, 1))
        given: Any = self.noise * rng.uniform(0.5, 2.0, self.n) if self.by_sample else self.noise
        self.operator = BlockedKernelOperator(self.kernel, given, ArrayInputs(self.X), self.executor)
        self.chosen = np.arange(0, self.n, self.n // self.m)[: self.m]

    @cached_property
    def fit(self) -> SparseFit:
        return fit_sparse(self.operator, self.y, Basis(self.X[self.chosen], self.chosen), METHODS[self.method])

    @cached_property
    def certificate(self) -> SparseCertificate:
        return certify(self.operator, self.fit, self.y, subset=self.chosen)

    @cached_property
    def exact(self) -> tuple[Any, Any]:
        """y' Kbar^-1 y and log|Kbar| in 50 digits."""
        rows = numbers(self.X)
        K = mp.matrix(self.n, self.n)
        for i in range(self.n):
            for j in range(self.n):
                K[i, j] = entry(self.kernel, rows[i], rows[j])
            K[i, i] += mp.mpf(float(np.broadcast_to(self.operator.noise, (self.n,))[i]))
        L = mp.cholesky(K)
        half = mp.lu_solve(L, mp.matrix([mp.mpf(float(value)) for value in self.y[:, 0]]))
        return mp.fsum(v * v for v in half), 2 * mp.fsum(mp.log(L[i, i]) for i in range(self.n))

    def risk(self) -> Any:
        """R of the sparse mean in 50 digits."""
        rows, basis = numbers(self.X), numbers(self.fit.model.prototypes)
        beta = [mp.mpf(float(value)) for value in self.fit.model.weights[:, 0]]
        noise = np.broadcast_to(self.operator.noise, (self.n,))
        misfit = mp.zero
        for row, target, own in zip(rows, self.y[:, 0], noise, strict=True):
            mean = mp.fsum(entry(self.kernel, row, z) * b for z, b in zip(basis, beta, strict=True))
            misfit += (mp.mpf(float(target)) - mean) ** 2 / mp.mpf(float(own))
        inner = mp.fsum(
            entry(self.kernel, z, other) * b * c
            for z, b in zip(basis, beta, strict=True)
            for other, c in zip(basis, beta, strict=True)
        )
        return (misfit + inner) / 2


@pytest.mark.parametrize("by_sample", [False, True])
@pytest.mark.parametrize("method", ["sr", "fitc", "sd"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_risks_are_on_the_right_side(name: str, method: str, by_sample: bool, one_thread: LocalExecutor) -> None:
    case = Case(*PROBLEMS[name], method, one_thread, by_sample=by_sample)
    found, (quadratic, _) = case.certificate, case.exact
    assert case.risk() <= mp.mpf(found.risk[0])
    for bound, values in found.least_risk.items():
        assert mp.mpf(values[0]) <= quadratic / 2, bound
    assert mp.mpf(float(found.excess[0])) >= case.risk() - quadratic / 2
    # Of what is evaluated by residuals little is lost.
    assert found.risk[0] <= float(case.risk()) * (1.0 + 1e-3)
    assert set(found.least_risk) >= ({"none", "subset"} if method == "sd" else {"none", "subset", "residual", "trace"})


@pytest.mark.parametrize("method", ["dtc", "fitc"])
@pytest.mark.parametrize("name", [name for name in PROBLEMS if name != "no stationary one"])
def test_means_and_variances_are_within_their_bounds(name: str, method: str, one_thread: LocalExecutor) -> None:
    case = Case(*PROBLEMS[name], method, one_thread)
    model, certificate = case.fit.model, case.certificate
    exact = ExactGP(case.X, case.T, numbers(case.y), case.kernel, case.noise)
    points = Points.of(case.kernel, case.operator.double, case.T)
    lower, upper = interval_of(model, case.noise, certificate.normal_share)(case.T)
    bound = certificate.mean_error_bound(upper, points.prior, points.errors)
    for row, mean in enumerate(model.mean(case.T)):
        assert mp.mpf(float(lower[row])) <= exact.variance[row] <= mp.mpf(float(upper[row]))
        assert abs(mp.mpf(float(mean[0])) - exact.mean[row][0]) <= mp.mpf(float(bound[row, 0]))
    at_samples = ExactGP(case.X, case.X, numbers(case.y), case.kernel, case.noise)
    errors = [mp.mpf(float(mean[0])) - own[0] for mean, own in zip(model.mean(case.X), at_samples.mean, strict=True)]
    assert mp.sqrt(mp.fsum(e * e for e in errors) / case.n) <= mp.mpf(float(certificate.rms_bound[0]))
    assert method == "fitc" or lower.max() > 0.0 or name == "little noise"


@pytest.mark.parametrize("by_sample", [False, True])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_evidence_lies_between_its_bounds(name: str, by_sample: bool, one_thread: LocalExecutor) -> None:
    case = Case(*PROBLEMS[name], "vfe", one_thread, by_sample=by_sample)
    quadratic, determinant = case.exact
    evidence = -(case.n * mp.log(2 * mp.pi) + quadratic + determinant) / 2
    found = case.certificate.evidence
    upper, divergence = case.certificate.evidence_upper, case.certificate.divergence
    assert found is not None
    assert upper is not None
    assert divergence is not None
    assert mp.mpf(found.lower) <= evidence <= mp.mpf(upper)
    assert divergence >= upper - found.lower


def test_with_all_samples_as_the_basis_the_bounds_meet(one_thread: LocalExecutor) -> None:
    case = Case(*PROBLEMS["rough"], "vfe", one_thread, m=36)
    found, (quadratic, _) = case.certificate, case.exact
    assert found.evidence is not None
    assert found.evidence_upper is not None
    assert found.evidence_upper - found.evidence.lower < 1e-5
    assert float(found.excess[0]) < 1e-5
    assert found.risk[0] == pytest.approx(float(quadratic / 2), rel=1e-8)
    assert float(found.gap[0]) < 1e-5
    lower, upper = interval_of(case.fit.model, case.noise, found.normal_share)(case.T)
    exact = np.array([float(v) for v in ExactGP(case.X, case.T, numbers(case.y), case.kernel, case.noise).variance])
    np.testing.assert_allclose(upper, exact, rtol=1e-7)
    # From below it is the first function's share; what the basis leaves is the second one's, all of it here.
    left = fit_sparse(case.operator, case.y, Basis(case.X, case.chosen), METHODS["sr"]).model
    np.testing.assert_allclose(lower, left.variance(case.T), rtol=1e-5)


def test_the_elbo_rises_with_the_basis(one_thread: LocalExecutor) -> None:
    found = [Case(*PROBLEMS["rough"], "vfe", one_thread, m=m).certificate.evidence for m in (4, 9, 18, 36)]
    elbos = [evidence.lower for evidence in found if evidence is not None]
    assert len(elbos) == 4
    assert elbos == sorted(elbos)


def test_the_gap_is_smola_and_bartletts(one_thread: LocalExecutor) -> None:
    """Equations (5) to (8) with a* the subset's alpha, by dense algebra."""
    case = Case(*PROBLEMS["rough"], "sr", one_thread)
    K, s2, y = case.kernel(case.X, case.X), case.noise, case.y[:, 0]
    alpha, star = np.zeros(case.n), np.zeros(case.n)
    alpha[case.chosen] = case.fit.model.weights[:, 0]
    own = K[np.ix_(case.chosen, case.chosen)] + s2 * np.eye(case.m)
    star[case.chosen] = np.linalg.solve(own, y[case.chosen])
    Q = -y @ K @ alpha + alpha @ (s2 * K + K @ K) @ alpha / 2.0
    Q_star = -y @ star + star @ (K + s2 * np.eye(case.n)) @ star / 2.0
    gap = 2.0 * (Q + s2 * Q_star + y @ y / 2.0) / (-Q + s2 * Q_star + y @ y / 2.0)
    only = SparseCertificate.from_json(
        {**case.certificate.to_json(), "least_risk": {"subset": list(case.certificate.least_risk["subset"])}}
    )
    assert float(only.gap[0]) == pytest.approx(gap, rel=1e-6)


def test_passes_of_descent_tighten_the_bound(one_thread: LocalExecutor) -> None:
    case = Case(*PROBLEMS["rough"], "sr", one_thread)
    errors, quadratic = SampleErrors.of(case.operator, case.fit.model.prototypes), case.exact[0]
    before, best = case.certificate, []
    for passes in (0.5, 1.0, 6.0):
        solver = GreedyBlockCoordinateDescent(block_size=6)
        solution = solve(case.operator, case.y, solver=solver, stopping=MaxPasses(passes))
        least = descent_bound(case.operator, solution, case.y, errors)
        assert mp.mpf(float(least[0])) <= quadratic
        best.append(float(before.with_bound("descent", least).excess[0]))
    assert best == sorted(best, reverse=True)
    assert best[-1] < float(before.excess[0])
    assert mp.mpf(float(least[0])) >= 0.999 * quadratic


def test_it_survives_json(one_thread: LocalExecutor) -> None:
    for method in ("vfe", "sd"):
        found = Case(*PROBLEMS["smooth"], method, one_thread).certificate
        assert SparseCertificate.from_json(json.loads(json.dumps(found.to_json()))) == found


@settings(max_examples=25)
@given(
    st.integers(0, 10**6),
    st.floats(-4.0, 1.5),
    st.floats(-9.0, 0.0),
    st.integers(1, 20),
    st.sampled_from(["sr", "fitc", "sd"]),
    st.booleans(),
)
def test_cases_drawn_at_random(
    seed: int, log_gamma: float, log_noise: float, m: int, method: str, by_sample: bool
) -> None:
    executor = LocalExecutor(1)
    kernel = SquaredExponential(gamma=(10.0**log_gamma,) * 2)
    case = Case(kernel, 10.0**log_noise, method, executor, n=20, m=m, seed=seed, by_sample=by_sample)
    found, (quadratic, determinant) = case.certificate, case.exact
    assert mp.mpf(float(found.excess[0])) >= case.risk() - quadratic / 2
    assert all(mp.mpf(values[0]) <= quadratic / 2 for values in found.least_risk.values())
    if found.evidence is not None and found.evidence_upper is not None:
        evidence = -(case.n * mp.log(2 * mp.pi) + quadratic + determinant) / 2
        assert mp.mpf(found.evidence.lower) <= evidence <= mp.mpf(found.evidence_upper)
    if not by_sample:
        exact = ExactGP(case.X, case.T, numbers(case.y), kernel, case.noise)
        lower, upper = interval_of(case.fit.model, case.noise, found.normal_share)(case.T)
        points = Points.of(kernel, case.operator.double, case.T)
        bound = found.mean_error_bound(upper, points.prior, points.errors)
        mean = case.fit.model.mean(case.T)
        for row in range(len(case.T)):
            assert mp.mpf(float(lower[row])) <= exact.variance[row] <= mp.mpf(float(upper[row]))
            assert abs(mp.mpf(float(mean[row, 0])) - exact.mean[row][0]) <= mp.mpf(float(bound[row, 0]))
    executor.close()


def test_the_interval_by_sample_takes_the_basis_samples_own_noise(one_thread: LocalExecutor) -> None:
    case = Case(*PROBLEMS["rough"], "dtc", one_thread, by_sample=True)
    noise = np.asarray(case.operator.noise)
    interval = interval_of(case.fit.model, noise_at(noise, case.chosen), case.certificate.normal_share)
    lower, upper = interval(case.T)
    K = case.kernel(case.X, case.X) + np.diag(noise)
    across = case.kernel(case.T, case.X)
    exact = case.kernel.diagonal(case.T) - np.einsum("tn,nt->t", across, np.linalg.solve(K, across.T))
    assert np.all(lower <= exact)
    assert np.all(exact <= upper)
    assert np.all(upper - lower < 1.0)
