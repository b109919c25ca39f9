"""Certificates of sparse models, against dense solutions and in fifty digits."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.kernels import Kernel, Linear, Matern12, Matern32, SquaredExponential
from dkgp.models.sparse.bounds import Evidence, SampleErrors, descent_bound, normal_error
from dkgp.models.sparse.certificate import SparseCertificate, _Whitened, certify
from dkgp.models.sparse.model import METHODS, Basis, fit_sparse
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
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


U = 2.0**-53
CERTIFICATE = SparseCertificate(
    50,
    7,
    0.3,
    (9.0, 4.0),
    (2.0, 1.0),
    {"none": (0.0, 0.0), "a": (1.5, 0.2), "b": (1.0, 0.9)},
    (1e14, 3e14),
    (2e14, 0.0),
)


def test_the_best_bound_wins_for_each_target() -> None:
    assert CERTIFICATE.best == ("a", "b")
    np.testing.assert_array_equal(CERTIFICATE.least, [1.5, 0.9])
    np.testing.assert_allclose(CERTIFICATE.excess, [0.5, 0.1], rtol=1e-14)
    # No risk is below the least there is: what comes out as less is rounding.
    np.testing.assert_array_equal(replace(CERTIFICATE, risk=(1.4, 0.9)).excess, [0.0, 0.0])
    more = CERTIFICATE.with_bound("b", np.array([3.8, 0.2]))
    assert dict(more.least_risk) == {"none": (0.0, 0.0), "a": (1.5, 0.2), "b": (1.9, 0.9)}
    new = CERTIFICATE.with_bound("c", np.array([3.6, -0.2]))
    assert (new.least_risk["c"], new.best) == ((1.8, 0.0), ("c", "b"))


def test_distances_and_gaps_by_their_formulas() -> None:
    np.testing.assert_allclose(CERTIFICATE.rms_bound, np.sqrt([2.0 * 0.5 * 0.3 / 50, 2.0 * 0.1 * 0.3 / 50]), rtol=1e-13)
    np.testing.assert_allclose(CERTIFICATE.gap, [2.0 * 0.5 / 5.5, 2.0 * 0.1 / 2.1], rtol=1e-13)
    assert CERTIFICATE.total_gap == pytest.approx(2.0 * 0.6 / (13.0 - 3.0 - 2.4), rel=1e-13)
    # Where the bounds leave it open whether there is more than no function at all, nothing is known; met, all is.
    np.testing.assert_array_equal(replace(CERTIFICATE, target_square=(3.4, 1.9)).gap, [np.inf, np.inf])
    np.testing.assert_array_equal(replace(CERTIFICATE, target_square=(3.5, 1.9)).gap, [np.inf, np.inf])
    np.testing.assert_array_equal(replace(CERTIFICATE, target_square=(0.0, 0.0), risk=(1.5, 0.9)).gap, [0.0, 0.0])


def test_no_bound_is_rounded_inward() -> None:
    for seed in range(200):
        rng = np.random.default_rng(seed)
        square, risk = float(rng.uniform(4.0, 9.0)), float(rng.uniform(1.0, 2.0))
        least = risk * float(rng.uniform(0.1, 0.99))
        noise, n = float(rng.uniform(0.1, 1.0)), int(rng.integers(2, 99))
        found = SparseCertificate(n, 3, noise, (square,), (risk,), {"a": (least,)}, (0.0,), (0.0,))
        excess = mp.mpf(risk) - mp.mpf(least)
        # y' D y as summed is off by (n + 4) u of itself.
        size = mp.mpf(square) * (1 - (n + 4) * mp.mpf(U)) - mp.mpf(risk) - mp.mpf(least)
        for value, true in (
            (found.excess[0], excess),
            (found.rms_bound[0], mp.sqrt(2 * excess * mp.mpf(noise) / n)),
            (found.gap[0], 2 * excess / size),
            (found.total_gap, 2 * excess / size),
        ):
            assert true <= mp.mpf(float(value)) <= true * (1 + mp.mpf(2000 * U))


@pytest.mark.parametrize("excess", [True, False])
def test_bounds_of_means_as_the_proofs_add_them_up(excess: bool) -> None:
    certificate = CERTIFICATE if excess else replace(CERTIFICATE, risk=(1.5, 0.9))
    variance, prior, errors = np.array([0.5, 4.0]), np.array([1.0, 9.0]), np.array([1e12, 3.0])
    bounds = certificate.mean_error_bound(variance, prior, errors)
    assert bounds.shape == (2, 2)
    for i in range(2):
        scale = math.sqrt(prior[i] * (1.0 + 1.01 * 4.0 * U * errors[i]))
        for t in range(2):
            size, spread = certificate.magnitude[t], certificate.spread[t]
            rounding = scale * (((7 + 4) * U + 2.0 * U * errors[i]) * size + 2.0 * U * spread)
            distance = math.sqrt(2.0 * (0.5, 0.1)[t] * variance[i]) if excess else 0.0
            assert bounds[i, t] == pytest.approx(distance + 1.01 * rounding, rel=1e-13)


def test_what_is_known_of_the_evidence() -> None:
    assert (CERTIFICATE.evidence_upper, CERTIFICATE.divergence) == (None, None)
    evidence = Evidence(-20.0, -10.0, 3.0)
    certificate = replace(CERTIFICATE, evidence=evidence)
    upper = certificate.evidence_upper
    assert upper == evidence.upper(2.0 * certificate.least)
    assert certificate.divergence == np.nextafter(upper + 20.0, np.inf) > 0.0
    # A divergence is none where the bounds meet.
    above = replace(CERTIFICATE, evidence=Evidence(upper + 1.0, -10.0, 3.0))
    assert above.divergence == np.nextafter(0.0, np.inf)


@pytest.mark.parametrize("share", [math.inf, 0.25])
def test_written_and_read_it_is_the_same(share: float) -> None:
    certificate = replace(CERTIFICATE, evidence=Evidence(-20.0, -10.0, 3.0), normal_share=share, assumes="a word")
    document = json.loads(json.dumps(certificate.to_json()))
    assert SparseCertificate.from_json(document) == certificate
    assert document["normal_share"] == (None if share == math.inf else share)
    assert document["best"] == ["a", "b"]
    np.testing.assert_array_equal(document["gap"], certificate.gap)
    open_one = replace(CERTIFICATE, target_square=(3.4, 4.0))
    assert json.loads(json.dumps(open_one.to_json()))["gap"] == [None, open_one.gap[1]]


@pytest.mark.parametrize("by_sample", [False, True])
def test_directions_and_shares_by_dense_algebra(
    rng: np.random.Generator, one_thread: LocalExecutor, by_sample: bool
) -> None:
    """The terms of the proofs by F, on a basis that L partly determines."""
    n, chosen = 40, np.arange(0, 40, 4)
    X, y = rng.standard_normal((n, 2)), rng.standard_normal((n, 2))
    kernel, each = SquaredExponential(gamma=(2.0, 3.0), variance=1.5), np.full(n, 0.2)
    if by_sample:
        each = rng.uniform(0.1, 0.5, n)
    operator = BlockedKernelOperator(kernel, each if by_sample else 0.2, ArrayInputs(X), one_thread)
    fit = fit_sparse(operator, y, Basis(X[chosen], chosen), METHODS["dtc"])
    certificate = certify(operator, fit, y)
    np.testing.assert_allclose(certificate.target_square, (y**2 / each[:, None]).sum(axis=0), rtol=1e-13)
    assert certificate.largest_noise == each.max()
    sizes, errors = np.abs(fit.model.weights), SampleErrors.of(operator, CrossKernel(operator, X[chosen]).prototypes)
    np.testing.assert_allclose(certificate.magnitude, 1.01 * math.sqrt(1.5) * sizes.sum(axis=0), rtol=1e-12)
    spread = 1.01 * math.sqrt(1.5) * (errors.prototypes.errors @ sizes)
    np.testing.assert_allclose(certificate.spread, spread, rtol=1e-12)

    proof = _Whitened.of(operator, fit.regressors, errors)
    L = np.linalg.cholesky(kernel(X[chosen], X[chosen]))
    F = np.linalg.solve(L, kernel(X[chosen], X)).T
    left = 1.5 - np.sum(F**2, axis=1)
    mean, m = float(each.mean()), len(chosen)
    gram, right = F.T @ (F / each[:, None]), F.T @ (y / each[:, None])
    directions = proof.with_more_noise()
    for found, more in zip(directions, (math.sqrt(mean * left.sum()), left.sum()), strict=True):
        expected = np.linalg.solve(L.T, np.linalg.solve((1.0 + more / mean) * np.eye(m) + gram, right))
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    # What they prove is of their own names: of each target the bound along the residual of just these weights.
    exact = [float(t @ np.linalg.solve(kernel(X, X) + np.diag(each), t)) / 2.0 for t in y.T]
    for name, weights in (("residual", [fit.model.weights]), ("trace", directions)):
        proven = np.zeros(2)
        for beta in weights:
            v = (y - kernel(X, X[chosen]) @ beta) / each[:, None]
            residual, gone = F.T @ v, np.abs(v).T @ np.sqrt(np.maximum(left, 0.0))
            length = np.sum(residual**2, axis=0) + np.sum(each[:, None] * v**2, axis=0) + gone**2
            proven = np.maximum(proven, 0.5 * np.sum(v * y, axis=0) ** 2 / length)
        np.testing.assert_allclose(certificate.least_risk[name], proven, rtol=1e-3)
        assert (certificate.least_risk[name] <= np.asarray(exact)).all()

    off = math.sqrt(float(np.sum(proof.row_errors**2 / each)))
    assert 0.0 < off < 1e-9
    assert proof.row_error == pytest.approx(off * (1.0 + (n + 8) * U), rel=1e-14, abs=0)
    own = normal_error(fit.regressors.normal, n) + fit.regressors.off
    length = float(np.linalg.norm(fit.regressors.normal)) * (1.0 + own)
    assert certificate.normal_share == pytest.approx(1.01 * (own + 2.0 * length * off + off**2), rel=1e-12, abs=0)
    if not by_sample:
        assert certificate.evidence.trace == pytest.approx(float(left.sum()) / 0.2, rel=1e-3)
