"""A sparse model's certificate by its formulas, each term where it is a share that shows."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.kernels import SquaredExponential
from dkgp.models.sparse.bounds import Evidence, SampleErrors, normal_error
from dkgp.models.sparse.certificate import SparseCertificate, _Whitened, certify
from dkgp.models.sparse.model import METHODS, Basis, fit_sparse
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from tests.models.exact_gp import mp

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
    """What the proofs by F are made of, on a basis that L says something of."""
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
