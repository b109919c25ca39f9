"""Kernel conjugate gradient on other losses, against a general optimiser that has the whole kernel matrix."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.optimize

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError
from dkgp.solvers import GradientInfNorm, KernelConjugateGradient, MaxIterations, solve
from dkgp.solvers.risk import HuberLoss, LogisticLoss, RiskProgress, SquaredLoss, minimise_risk
from tests.solvers.problems import smooth_problem

PROBLEM = smooth_problem(200, 2, noise_variance=0.1, gamma=1.0)
K = PROBLEM.matrix - 0.1 * np.eye(200)
CONTINUOUS = PROBLEM.y[:, 0] + np.where(np.arange(200) % 20 == 0, 5.0, 0.0)
LABELS = np.where(CONTINUOUS > 0.2, 1.0, -1.0)
losses = pytest.mark.parametrize(
    ("loss", "targets"),
    [(SquaredLoss(), CONTINUOUS), (HuberLoss(0.5), CONTINUOUS), (LogisticLoss(), LABELS)],
    ids=["squared", "huber", "logistic"],
)


def least_risk(loss: Any, targets: np.ndarray, regularisation: float) -> float:
    """By L-BFGS on L' alpha, where the penalty is a plain square."""
    root = np.linalg.cholesky(K + 1e-10 * np.eye(200))

    def risk(w: np.ndarray) -> tuple[float, np.ndarray]:
        values = root @ w
        value = loss.value(targets, values).sum() + 0.5 * regularisation * w @ w
        return value, root.T @ loss.slope(targets, values) + regularisation * w

    found = scipy.optimize.minimize(
        risk, np.zeros(200), jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9}
    )
    return float(found.fun)


@losses
def test_the_least_risk_of_a_general_optimiser(loss: Any, targets: np.ndarray, executor: LocalExecutor) -> None:
    solution = minimise_risk(PROBLEM.blocked(executor), targets, loss=loss, regularisation=0.1, gap=1e-6)
    assert solution.converged
    least = least_risk(loss, targets, 0.1)
    assert solution.progress.risk == pytest.approx(least, rel=2e-6)
    np.testing.assert_allclose(solution.values, K @ solution.alpha, rtol=0, atol=1e-8)


@losses
def test_bounds_hold_all_the_way(loss: Any, targets: np.ndarray, executor: LocalExecutor) -> None:
    seen: list[RiskProgress] = []
    minimise_risk(PROBLEM.blocked(executor), targets, loss=loss, regularisation=0.1, gap=1e-5, callback=seen.append)
    least = least_risk(loss, targets, 0.1)
    assert all(step.lower_bound <= least * (1 + 1e-7) <= step.risk * (1 + 2e-7) for step in seen)
    assert all(later.risk <= earlier.risk for earlier, later in itertools.pairwise(seen))


@losses
def test_slopes_and_conjugates_by_definition(loss: Any, targets: np.ndarray) -> None:
    grid = np.linspace(-30.0, 30.0, 60_001)
    for y in (targets[0], targets[1]):
        many = np.full_like(grid, y)
        slope = np.gradient(loss.value(many, grid), grid)
        np.testing.assert_allclose(loss.slope(many, grid)[1:-1], slope[1:-1], atol=1e-3)
        for share in (0.1, 0.4):
            u = -share * y / abs(y)
            largest = np.max(u * grid - loss.value(many, grid))
            assert loss.conjugate(np.array([y]), np.array([u]))[0] == pytest.approx(largest, abs=1e-5)
    assert np.isinf(LogisticLoss().conjugate(np.array([1.0]), np.array([0.1])))[0]
    assert np.isinf(HuberLoss(0.5).conjugate(np.array([1.0]), np.array([0.6])))[0]


def test_the_squared_loss_takes_the_closed_forms_way(executor: LocalExecutor) -> None:
    y = PROBLEM.y[:, 0]
    for count in (1, 2, 5):
        general = minimise_risk(
            PROBLEM.blocked(executor), y, loss=SquaredLoss(), regularisation=0.1, gap=1e-15, max_iterations=count + 1
        )
        closed = solve(
            PROBLEM.blocked(executor),
            y,
            solver=KernelConjugateGradient("double"),
            stopping=GradientInfNorm(1e-15) | MaxIterations(count),
        )
        np.testing.assert_allclose(general.alpha, closed.alpha[:, 0], rtol=0, atol=1e-8)


def test_what_cannot_be_minimised(executor: LocalExecutor) -> None:
    operator = PROBLEM.blocked(executor)
    with pytest.raises(InputError, match="labels of -1 and 1; got 0"):
        minimise_risk(operator, np.zeros(200), loss=LogisticLoss(), regularisation=1.0)
    with pytest.raises(InputError, match="200 finite numbers; got an array of shape"):
        minimise_risk(operator, np.zeros(3), loss=SquaredLoss(), regularisation=1.0)
    with pytest.raises(InputError, match="the regularisation must be finite and positive; got 0.0"):
        minimise_risk(operator, np.zeros(200), loss=SquaredLoss(), regularisation=0.0)
    with pytest.raises(InputError, match="width of a Huber loss"):
        HuberLoss(0.0)


def test_the_iteration_limit_is_told(executor: LocalExecutor) -> None:
    solution = minimise_risk(
        PROBLEM.blocked(executor), LABELS, loss=LogisticLoss(), regularisation=1e-3, gap=1e-9, max_iterations=3
    )
    assert not solution.converged
    assert solution.progress.iteration == 3
