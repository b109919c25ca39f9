"""Kernel CG and parameter CG, step by step, against the paper's algorithm written down as it is printed.

N. Ratliff, J. A. Bagnell, Kernel Conjugate Gradient for Fast Kernel Machines (2007), Algorithm 1, on a dense matrix,
every line minimised by a root finder; parameter CG is the same with the ordinary gradient and inner product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.optimize

from dkgp.operators.base import FloatArray
from dkgp.solvers import Cholesky, MaxIterations
from dkgp.solvers.losses import LogisticLoss, SquaredHingeLoss, SquaredLoss
from dkgp.solvers.risk import Risk, RiskSolution, minimise_by
from dkgp.solvers.risk.majorisation import RiskMajorisation
from tests.solvers.problems import smooth_problem
from tests.solvers.risk.running import minimised_by

# Roundings grow with the condition number on parameter CG's way: one of a few dozens lets it be followed for long.
PROBLEM = smooth_problem(60, 2, gamma=40.0)
K = PROBLEM.kernel(PROBLEM.X, PROBLEM.X)
LABELS = np.where(PROBLEM.y[:, 0] > 0.1, 1.0, -1.0)
GAP, MOST = 1e-3, 25


@dataclass(frozen=True)
class Written:
    """A loss for labels: its value, slope and conjugate, sample by sample."""

    loss: Any
    value: Callable[[FloatArray], FloatArray]
    slope: Callable[[FloatArray], FloatArray]
    conjugate: Callable[[FloatArray], FloatArray]


def entropy(share: FloatArray) -> FloatArray:
    inside = np.clip(share, 1e-300, 1.0 - 1e-16)
    found = inside * np.log(inside) + (1.0 - inside) * np.log1p(-inside)
    return np.where((share >= 0.0) & (share <= 1.0), found, np.inf)


LOSSES = {
    "logit": Written(
        LogisticLoss(),
        lambda f: np.log1p(np.exp(-LABELS * f)),
        lambda f: -LABELS / (1.0 + np.exp(LABELS * f)),
        lambda u: entropy(-LABELS * u),
    ),
    "squared hinge": Written(
        SquaredHingeLoss(),
        lambda f: 0.5 * np.maximum(1.0 - LABELS * f, 0.0) ** 2,
        lambda f: np.where(LABELS * f < 1.0, f - LABELS, 0.0),
        lambda u: np.where(LABELS * u <= 0.0, LABELS * u + 0.5 * u**2, np.inf),
    ),
    "squares": Written(
        SquaredLoss(), lambda f: 0.5 * (LABELS - f) ** 2, lambda f: f - LABELS, lambda u: u * LABELS + 0.5 * u**2
    ),
}


@dataclass(frozen=True)
class Path:
    """Coefficients and risks after 0, 1, ... iterations; bounds from below that are known by then; and steps' lengths.

    Of the gradient at a point the bound tells after the product that the next iteration begins with.
    """

    alpha: list[FloatArray]
    risk: list[float]
    known: list[float]
    bound: list[float]
    newton: list[float]
    steps: list[float]

    def gap(self, k: int, bounds: list[float]) -> float:
        return (self.risk[k] - bounds[k]) / max(abs(self.risk[k]), abs(bounds[k]))


def as_printed(written: Written, penalty: float, kernel: bool, iterations: int, enough: float = 0.0) -> Path:
    """Algorithm 1 from f = 0, until the gap that is known is small enough, or for so many iterations."""

    def inner(a: FloatArray, b: FloatArray) -> float:
        return float(a @ (K @ b)) if kernel else float(a @ b)

    def gradient(alpha: FloatArray) -> FloatArray:
        functional = written.slope(K @ alpha) + penalty * alpha
        return functional if kernel else K @ functional

    def risk(alpha: FloatArray) -> float:
        return float(written.value(K @ alpha).sum() + 0.5 * penalty * alpha @ K @ alpha)

    def dual(slopes: FloatArray) -> float:
        return float(-slopes @ K @ slopes / (2.0 * penalty) - written.conjugate(slopes).sum())

    def below(alpha: FloatArray) -> float:
        return max(dual(written.slope(K @ alpha)), dual(-penalty * alpha))

    alpha = np.zeros(len(K))
    g = gradient(alpha)
    h = -g
    least = dual(np.zeros(len(K)))
    path = Path([alpha], [risk(alpha)], [least], [max(least, below(alpha))], [], [])
    while len(path.steps) < iterations and path.gap(-1, path.known) > enough:

        def along(step: float, start: FloatArray = alpha, way: FloatArray = h) -> float:
            at = start + step * way
            return float((K @ way) @ (written.slope(K @ at) + penalty * at))

        high = 1.0
        while along(high) < 0.0:
            high *= 2.0
        step = scipy.optimize.brentq(along, 0.0, high, xtol=1e-300, rtol=4.0 * np.finfo(float).eps)
        curved = (along(1e-6 * step) - along(0.0)) / (1e-6 * step)
        alpha = alpha + step * h
        after = gradient(alpha)
        eta = inner(after - g, after) / inner(g, g)
        g, h = after, -after + eta * h
        path.alpha.append(alpha)
        path.risk.append(risk(alpha))
        path.known.append(path.bound[-1])
        path.bound.append(max(path.bound[-1], below(alpha)))
        path.newton.append(-along(0.0) / curved)
        path.steps.append(step)
    return path


def majorised(written: Written, curvature: float, penalty: float, steps: int) -> list[FloatArray]:
    """Coefficients after 0, 1, ... steps of majorisation: least squares solved exactly, steps conjugate to the last.

    Nonlinear conjugate gradients of Polak and Ribiere, whose preconditioned gradient z is the way from alpha to the
    least squares' solution, turned round: beta = max(z' K (g - g_before) / (z_before' K g_before), 0).
    """
    shifted = K + penalty / curvature * np.eye(len(K))
    alpha, before = np.zeros(len(K)), None
    path, way = [alpha], np.zeros(len(K))
    for _ in range(steps):
        f = K @ alpha
        g = written.slope(f) + penalty * alpha
        z = alpha - np.linalg.solve(shifted, f - written.slope(f) / curvature)
        beta = 0.0 if before is None else max(z @ K @ (g - before[0]) / (before[1] @ K @ before[0]), 0.0)
        way = beta * way - z
        if g @ K @ way >= 0.0:
            way = -z

        def along(step: float, start: FloatArray = alpha, way: FloatArray = way) -> float:
            at = start + step * way
            return float((K @ way) @ (written.slope(K @ at) + penalty * at))

        high = 1.0
        while along(high) < 0.0:
            high *= 2.0
        alpha = alpha + scipy.optimize.brentq(along, 0.0, high, xtol=1e-300, rtol=4.0 * np.finfo(float).eps) * way
        before = (g, z)
        path.append(alpha)
    return path


@pytest.mark.parametrize("penalty", [0.1, 0.01])
def test_every_step_of_majorisation_is_conjugate_to_the_last(penalty: float) -> None:
    written, count = LOSSES["logit"], 8
    path = majorised(written, written.loss.curvature_bound, penalty, count)
    method = RiskMajorisation(Risk(written.loss, penalty), "double", Cholesky())
    rounds = 0
    for k in range(1, count + 1):
        # A step may take several rounds of its solve, which ends with a look at what remains.
        while True:
            rounds += 1
            found = minimise_by(PROBLEM.dense(), LABELS, method, stopping=MaxIterations(rounds))
            alpha = found.solution.alpha[:, 0]
            if not np.array_equal(alpha, path[k - 1]) and np.abs(alpha - path[k]).max() <= 1e-6 * np.abs(path[k]).max():
                break
            assert rounds <= 3 * k, f"step {k} of majorisation is not what is written down"


def minimised(written: Written, penalty: float, method: str, **options: Any) -> RiskSolution:
    return minimised_by(
        PROBLEM.dense(),
        LABELS,
        loss=written.loss,
        regularisation=penalty,
        method=method,
        precision="double",
        **options,
    )


@pytest.mark.covering
@pytest.mark.parametrize("penalty", [0.1, 0.01])
@pytest.mark.parametrize("method", ["kcg", "paramcg"])
@pytest.mark.parametrize("name", LOSSES)
def test_every_iterate_is_the_papers(name: str, method: str, penalty: float) -> None:
    written, count = LOSSES[name], 10
    path = as_printed(written, penalty, method == "kcg", count)
    for k in range(1, count + 1):
        found = minimised(written, penalty, method, gap=1e-300, max_iterations=k)
        assert found.solution.reason.rule == "max_iterations"
        assert found.solution.progress.iteration == k
        scale = np.abs(path.alpha[k]).max()
        np.testing.assert_allclose(found.solution.alpha[:, 0], path.alpha[k], atol=1e-8 * scale)
        assert found.risk[0] == pytest.approx(path.risk[k], rel=1e-10)
        assert found.lower_bound[0] == pytest.approx(path.bound[k], rel=1e-6)
    if name != "squares":
        # Newton's first step along the line is not where the line ends: it does not pass for a search.
        away = np.abs(np.array(path.newton) / np.array(path.steps) - 1.0)
        assert (away > 0.01).any()


@pytest.mark.parametrize("penalty", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("method", ["kcg", "paramcg"])
@pytest.mark.parametrize("name", LOSSES)
def test_it_stops_where_and_as_the_paper_does(name: str, method: str, penalty: float) -> None:
    """After as many iterations, with the same gap, or cut off by the same count."""
    written = LOSSES[name]
    path = as_printed(written, penalty, method == "kcg", MOST, GAP)
    last = len(path.steps)
    found = minimised(written, penalty, method, gap=GAP, max_iterations=MOST)
    reason = found.solution.reason
    assert found.solution.progress.iteration == last
    if path.gap(last, path.known) <= GAP:
        assert (reason.rule, reason.converged) == ("duality_gap", True)
        assert reason.message == f"duality gap {found.solution.progress.duality_gap:.3g} <= {GAP:g}"
    else:
        assert (reason.rule, reason.converged) == ("max_iterations", False)
        assert reason.message == f"{MOST} iterations done"
    assert found.solution.progress.duality_gap == pytest.approx(path.gap(last, path.bound), rel=1e-3)
