"""Noise by sample, Kbar = K + diag(s2_i), against dense algebra: every solver, its preconditioner and its bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.errors import CheckpointError
from dkgp.kernels import SquaredExponential
from dkgp.models.certificate import Certificate
from dkgp.operators import ArrayInputs, BlockedKernelOperator, CachedColumnsOperator, ProductError
from dkgp.operators.low_rank.factor import LowRankFactor, LowRankPreconditioner
from dkgp.solvers import (
    GradientInfNorm,
    MaxIterations,
    TiledCholesky,
    solve,
)
from dkgp.solvers.losses import SquaredLoss
from dkgp.solvers.risk import minimise_risk
from tests.solvers.problems import OverlappingExecutor
from tests.solvers.test_every_solver import SOLVERS

N = 300
KERNEL = SquaredExponential((6.0, 5.0, 4.0), 1.5)
RNG = np.random.default_rng(11)
X = RNG.standard_normal((N, 3))
# From a twentieth to five: no one variance is near all of them.
NOISE = 0.05 * 100.0 ** RNG.random(N)
Y = np.sin(2.0 * X[:, :2]) + np.sqrt(NOISE)[:, None] * RNG.standard_normal((N, 2))
MATRIX = KERNEL(X, X) + np.diag(NOISE)
ANSWER = np.linalg.solve(MATRIX, Y)
LEAST = float(NOISE.min())


def blocked(executor: LocalExecutor, **options: Any) -> BlockedKernelOperator:
    return BlockedKernelOperator(KERNEL, NOISE, ArrayInputs(X), executor, **options)


def objective(alpha: np.ndarray) -> float:
    return float(np.sum(alpha * (0.5 * MATRIX @ alpha - Y)))


def test_a_selection_under_way_sees_the_noise_of_its_candidates(executor: LocalExecutor) -> None:
    solver, stopping = SOLVERS["gbcd"], GradientInfNorm(1e-5)
    overlapping = OverlappingExecutor(2)
    found = solve(blocked(overlapping), Y, solver=solver, stopping=stopping)
    overlapping.close()
    assert found.alpha.tobytes() == solve(blocked(executor), Y, solver=solver, stopping=stopping).alpha.tobytes()


def test_kept_columns_and_approximate_products(executor: LocalExecutor) -> None:
    flat = SquaredExponential((6.0, 5.0), 1.5).on((0, 2), 3)
    matrix = flat(X, X) + np.diag(NOISE)
    with ProductError(1e-9).operator(flat, NOISE, ArrayInputs(X), executor) as bounded:
        assert np.abs(bounded.matmat(Y) - matrix @ Y).max() <= bounded.error_bound <= 1.01e-9
        some = np.array([7, 200, 3])
        off = np.abs(bounded.apply_columns(some, Y[some], "double") - matrix[:, some] @ Y[some]).max()
        assert off <= bounded.error_bound
    for operator in (CachedColumnsOperator(blocked(executor)), blocked(executor, coordinator_input_bytes=1)):
        assert operator.noise_variance == LEAST
        found = solve(operator, Y, solver=SOLVERS["gbcd"], stopping=GradientInfNorm(1e-5))
        assert np.abs(found.alpha - ANSWER).max() <= 1e-5 * np.sqrt(N) / LEAST


def test_the_preconditioner_is_the_inverse_of_factor_and_noise(executor: LocalExecutor) -> None:
    landmarks = np.arange(0, N, 6)
    K = KERNEL(X, X)
    nystrom = K[:, landmarks] @ np.linalg.solve(K[np.ix_(landmarks, landmarks)], K[landmarks])
    with blocked(executor) as operator:
        factor = LowRankFactor(operator, landmarks)
        found = LowRankPreconditioner(factor, operator.noise_variance).apply(Y)
    np.testing.assert_allclose(found, np.linalg.solve(nystrom + np.diag(NOISE), Y), rtol=0, atol=2e-5)


@pytest.mark.parametrize("solver", [SOLVERS["gbcd"], SOLVERS["cg"]], ids=["gbcd", "cg"])
@pytest.mark.parametrize("rounds", [1, 3, 6])
def test_bounds_on_objective_and_risk_hold(solver: Any, rounds: int, executor: LocalExecutor) -> None:
    """R = (y - f)' W (y - f) / 2 + s2 alpha' K alpha / 2 with W = diag(s2 / s2_i): what the noise weighs."""

    def risk(alpha: np.ndarray) -> float:
        function = MATRIX @ alpha - NOISE[:, None] * alpha
        weight = (LEAST / NOISE)[:, None]
        return 0.5 * float(np.sum(weight * (Y - function) ** 2) + LEAST * np.sum(alpha * function))

    solution = solve(blocked(executor), Y, solver=solver, stopping=MaxIterations(rounds))
    progress = solution.progress
    assert progress.objective == pytest.approx(objective(solution.alpha), rel=1e-6)
    assert objective(solution.alpha) - objective(ANSWER) <= progress.objective_gap_bound * (1.0 + 1e-6)
    least, start = risk(ANSWER), risk(np.zeros_like(Y))
    assert risk(solution.alpha) - least <= progress.duality_gap * (start - least) * (1.0 + 1e-6)
    # The bound is the dual's, to the last bit of it that rounding leaves: not merely a valid one.
    upper = risk(solution.alpha) - start
    lower = -LEAST * objective(solution.alpha) - start
    assert progress.duality_gap == pytest.approx(2.0 * (upper - lower) / abs(upper + lower), rel=1e-5)
    assert lower <= least - start


def test_certificate_weighs_the_residual_by_the_noise() -> None:
    gradient = MATRIX @ (ANSWER + 1e-3) - Y
    arguments = (ANSWER + 1e-3, gradient, Y)
    found = Certificate.of(*arguments, NOISE, 1.5, np.ones(N))
    assert found.noise_variance == LEAST
    weighed = np.sqrt(np.sum(gradient**2 * (LEAST / NOISE)[:, None], axis=0))
    np.testing.assert_allclose(found.residual_norm, weighed, rtol=1e-12)
    by_least, by_largest = (Certificate.of(*arguments, float(end), 1.5, np.ones(N)) for end in (LEAST, NOISE.max()))
    assert (found.proven_residual_norm < 0.6 * by_least.proven_residual_norm).all()
    assert (np.array(found.residual_rounding) < by_largest.residual_rounding).all()
    assert (np.linalg.norm(np.full((N, 2), 1e-3), axis=0) <= found.alpha_error_bound).all()
    tests = RNG.standard_normal((50, 3))
    off = np.abs(KERNEL(tests, X) @ np.full((N, 2), 1e-3))
    assert (off <= found.mean_error_bound(np.full(50, 1.5), np.ones(50))).all()


def test_noise_plays_no_part_in_a_risk(executor: LocalExecutor) -> None:
    found = minimise_risk(blocked(executor), Y, loss=SquaredLoss(), regularisation=0.3, gap=1e-10)
    K = KERNEL(X, X)
    np.testing.assert_allclose(found.values, K @ np.linalg.solve(K + 0.3 * np.eye(N), Y), rtol=0, atol=1e-4)


def test_tiles_on_disk_are_of_the_noise_that_they_were_made_with(executor: LocalExecutor, tmp_path: Path) -> None:
    solver = TiledCholesky(tile_rows=64, folder=str(tmp_path / "tiles"), keep=True)
    first = solve(blocked(executor), Y, solver=solver)
    assert solve(blocked(executor), Y, solver=solver).alpha.tobytes() == first.alpha.tobytes()
    for other in (NOISE[::-1], LEAST):
        with (
            BlockedKernelOperator(KERNEL, other, ArrayInputs(X), executor) as operator,
            pytest.raises(CheckpointError, match="belong to another factorisation: their noise variance is 'by sample"),
        ):
            solve(operator, Y, solver=solver)
