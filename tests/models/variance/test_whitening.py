"""How errors grow through a triangular factor, against extended precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
from mpmath import mp

from dkgp.kernels import SquaredExponential, TileEvaluator
from dkgp.models.variance.nystrom import Interpolation, residual_slack
from dkgp.models.variance.whitening import Whitening
from dkgp.operators.low_rank.pivots import jittered

UNIT = 0.5 * float(np.finfo(np.float64).eps)


def factor(rng: np.random.Generator, rank: int, gamma: float) -> np.ndarray:
    X = rng.normal(size=(rank, 2))
    K = SquaredExponential((gamma, gamma))(X, X)
    return np.asarray(scipy.linalg.cholesky(jittered(K), lower=True))


@pytest.mark.parametrize("gamma", [0.05, 1.0, 30.0])
@pytest.mark.parametrize("rank", [1, 30, 200])
def test_solves_are_off_by_no_more_than_is_said(rng: np.random.Generator, rank: int, gamma: float) -> None:
    L, d = factor(rng, rank, gamma), rng.uniform(0.1, 1.0, rank)
    found = Whitening.of(L, d)
    assert found is not None
    inverse = np.abs(scipy.linalg.solve_triangular(L, np.eye(rank), lower=True))
    # No less than the norms, and not much more: a percent, and what the power iteration has left.
    norm = np.linalg.norm(inverse @ np.abs(L), 2)
    assert norm <= found.solving / ((rank + 1) * UNIT) <= 1.1 * norm
    assert np.linalg.norm(inverse @ d) <= found.entries <= 1.1 * np.linalg.norm(inverse @ d)
    c = rng.normal(size=(rank, 5))
    computed = scipy.linalg.solve_triangular(L, c, lower=True)
    exact = np.zeros((rank, 5), np.longdouble)
    for i in range(rank):
        exact[i] = (c[i] - L[i, :i].astype(np.longdouble) @ exact[:i]) / L[i, i]
    off = np.linalg.norm((computed - exact).astype(np.float64), axis=0)
    assert (off <= found.solving * np.linalg.norm(computed, axis=0)).all()


def test_nothing_is_said_of_float32_or_of_what_is_next_to_singular(rng: np.random.Generator) -> None:
    L = factor(rng, 20, 1.0)
    assert Whitening.of(L.astype(np.float32), np.ones(20)) is None
    L[-1, -1] = 1e-18
    assert Whitening.of(L, np.ones(20)) is None
    L[-1, -1] = 0.0
    assert Whitening.of(L, np.ones(20)) is None


def test_what_the_factor_leaves_is_never_less_than_computed_and_hardly_more(rng: np.random.Generator) -> None:
    """diag(K - Q) of an ill-conditioned factor against 60 digits, with the factor taken as it is."""
    kernel = SquaredExponential(gamma=(0.4, 0.3))
    landmarks, rows = rng.standard_normal((40, 2)), rng.standard_normal((30, 2))
    evaluator = TileEvaluator(kernel, "double", expanded=False)
    Z, X = evaluator.prepare(landmarks), evaluator.prepare(rows)
    errors = evaluator.row_errors(landmarks)
    lower = np.linalg.cholesky(jittered(np.array(evaluator.tile(Z, Z)), 2.0 * float(errors.max())))
    f = scipy.linalg.solve_triangular(lower, evaluator.tile(X, Z).T, lower=True)
    slack = residual_slack(Interpolation.of(lower, f, errors), f, np.ones(30), evaluator.row_errors(rows))
    upper = 1.0 - np.einsum("ri,ri->i", f, f) + slack
    with mp.workdps(60):
        gamma = [mp.mpf(value) for value in kernel.gamma]
        for i in range(0, 30, 2):
            half: list[Any] = []
            for L, z in zip(lower, landmarks, strict=True):
                squares = (g * (mp.mpf(a) - mp.mpf(b)) ** 2 for g, a, b in zip(gamma, rows[i], z, strict=True))
                below = mp.fsum(mp.mpf(a) * b for a, b in zip(L, half, strict=False))
                half.append((mp.exp(-mp.fsum(squares)) - below) / mp.mpf(L[len(half)]))
            exact = 1 - mp.fsum(value**2 for value in half)
            assert upper[i] >= exact
            assert upper[i] <= exact + 2 * slack[i]
    whitening = Whitening.of(lower, np.ones(40))
    assert whitening is not None
    # Twice the growth of what the triangular solve rounds is what the norm would have made of it.
    assert np.median(slack) < 0.05 * 2.0 * whitening.solving
