"""What is proven of sparse models, against the exact one in 50 digits, and how tight it is."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.kernels import Kernel, Linear, Matern12, Matern32, SquaredExponential
from dkgp.models.sparse.bounds import SampleErrors, descent_bound
from dkgp.models.sparse.certificate import SparseCertificate
from dkgp.models.sparse.model import METHODS, Basis, fit_sparse
from dkgp.solvers import GreedyBlockCoordinateDescent, MaxPasses, solve
from tests.models.exact_gp import mp
from tests.models.sparse.judge import Judged, Problem

FLAT = SquaredExponential(gamma=(1e-3, 1e-3))
PROBLEMS: dict[str, tuple[Kernel, float]] = {
    "smooth": (SquaredExponential(gamma=(0.3, 0.5), variance=1.5), 0.05),
    "rough": (Matern12(gamma=(2.0, 2.0)), 0.1),
    "ill-conditioned": (FLAT, 1e-6),
    "little noise": (Matern32(gamma=(0.5, 0.5)), 1e-8),
    "no stationary one": (Linear(weight=(1.0, 0.5)) + SquaredExponential(gamma=(1.0, 1.0)), 0.02),
}


N = 36


@cache
def problem(name: str, by_sample: bool) -> Problem:
    """36 samples and one target; what is exact of them is computed once for all models."""
    kernel, noise = PROBLEMS[name]
    rng = np.random.default_rng(0)
    X, T = rng.standard_normal((N, 2)), 1.3 * rng.standard_normal((4, 2))
    y = np.sin(2.0 * X[:, :1]) + np.sqrt(noise) * rng.standard_normal((N, 1))
    return Problem(kernel, noise * rng.uniform(0.5, 2.0, N) if by_sample else noise, X, y, T)


def case(name: str, method: str, executor: Any, *, m: int = 12, by_sample: bool = False) -> Judged:
    """A sparse fit to m of a problem's samples."""
    return Judged(problem(name, by_sample), method, executor, np.arange(0, N, N // m)[:m])


@pytest.mark.covering
@pytest.mark.parametrize("by_sample", [False, True])
@pytest.mark.parametrize("method", ["sr", "vfe", "fitc", "sd"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_proven_is_true_and_little_is_lost(
    name: str, method: str, by_sample: bool, one_thread: LocalExecutor
) -> None:
    judged = case(name, method, one_thread, by_sample=by_sample).judge()
    assert judged.broken == []
    assert judged.checked["elbo"] == (method in ("sr", "vfe"))
    # Of what is evaluated by residuals little is lost.
    certificate, model = judged.certificate, judged.fit.model
    (risk,) = judged.problem.risk(model.prototypes, model.weights)
    assert certificate.risk[0] <= float(risk) * (1.0 + 1e-3)
    bounds = {"none", "subset"} if method == "sd" else {"none", "subset", "residual", "trace"}
    assert set(certificate.least_risk) >= bounds
    lower, upper = judged.interval(judged.problem.T)
    assert np.all(upper - lower < 2.0 * model.kernel.diagonal(judged.problem.T))
    if method in ("sr", "vfe") and name not in ("little noise", "no stationary one"):
        assert lower.max() > 0.0


def test_with_all_samples_as_the_basis_the_bounds_meet(one_thread: LocalExecutor) -> None:
    judged = case("rough", "vfe", one_thread, m=N)
    certificate, exact = judged.certificate, judged.problem
    assert certificate.evidence_upper - certificate.evidence.lower < 1e-5
    assert float(certificate.excess[0]) < 1e-5
    assert certificate.risk[0] == pytest.approx(float(exact.quadratic[0] / 2), rel=1e-8)
    assert float(certificate.gap[0]) < 1e-5
    lower, upper = judged.interval(exact.T)
    np.testing.assert_allclose(upper, [float(variance) for _, variance in exact.at_tests], rtol=1e-7)
    # From below it is the first function's share; what the basis leaves is the second one's, all of it here.
    basis = Basis(exact.X, judged.chosen)
    regressors = fit_sparse(judged.operator, exact.y, basis, METHODS["sr"]).model
    np.testing.assert_allclose(lower, regressors.variance(exact.T), rtol=1e-5)


def test_the_elbo_rises_with_the_basis(one_thread: LocalExecutor) -> None:
    proven = [case("rough", "vfe", one_thread, m=m).certificate.evidence for m in (4, 9, 18, 36)]
    elbos = [evidence.lower for evidence in proven if evidence is not None]
    assert len(elbos) == 4
    assert elbos == sorted(elbos)


def test_the_gap_is_smola_and_bartletts(one_thread: LocalExecutor) -> None:
    """Equations (5) to (8) with a* the subset's alpha, by dense algebra."""
    judged = case("rough", "sr", one_thread)
    X, y, chosen = judged.problem.X, judged.problem.y[:, 0], judged.chosen
    kernel, s2 = PROBLEMS["rough"]
    K, alpha, star = kernel(X, X), np.zeros(N), np.zeros(N)
    alpha[chosen] = judged.fit.model.weights[:, 0]
    star[chosen] = np.linalg.solve(K[np.ix_(chosen, chosen)] + s2 * np.eye(len(chosen)), y[chosen])
    Q = -y @ K @ alpha + alpha @ (s2 * K + K @ K) @ alpha / 2.0
    Q_star = -y @ star + star @ (K + s2 * np.eye(N)) @ star / 2.0
    gap = 2.0 * (Q + s2 * Q_star + y @ y / 2.0) / (-Q + s2 * Q_star + y @ y / 2.0)
    certificate = judged.certificate
    least = {"subset": list(certificate.least_risk["subset"])}
    only = SparseCertificate.from_json({**certificate.to_json(), "least_risk": least})
    assert float(only.gap[0]) == pytest.approx(gap, rel=1e-6)


def test_passes_of_descent_tighten_the_bound(one_thread: LocalExecutor) -> None:
    judged = case("rough", "sr", one_thread)
    operator, y, (quadratic,) = judged.operator, judged.problem.y, judged.problem.quadratic
    errors, before, best = SampleErrors.of(operator, judged.fit.model.prototypes), judged.certificate, []
    for passes in (0.5, 1.0, 6.0):
        solver = GreedyBlockCoordinateDescent(block_size=6)
        solution = solve(operator, y, solver=solver, stopping=MaxPasses(passes))
        least = descent_bound(operator, solution, y, errors)
        assert mp.mpf(float(least[0])) <= quadratic
        best.append(float(before.with_bound("descent", least).excess[0]))
    assert best == sorted(best, reverse=True)
    assert best[-1] < float(before.excess[0])
    assert mp.mpf(float(least[0])) >= 0.999 * quadratic


def test_it_survives_json(one_thread: LocalExecutor) -> None:
    for method in ("vfe", "sd"):
        certificate = case("smooth", method, one_thread).certificate
        assert SparseCertificate.from_json(json.loads(json.dumps(certificate.to_json()))) == certificate
