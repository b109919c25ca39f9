"""Kernel conjugate gradient on other losses, against a general optimiser that has the whole kernel matrix."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.optimize

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError, UsageError
from dkgp.kernels import SquaredExponential
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.inputs import ArrayInputs
from dkgp.solvers import GradientInfNorm, KernelConjugateGradient, MaxIterations, Progress, solve
from dkgp.solvers.losses import HuberLoss, LogisticLoss, ProbitLoss, SoftmaxLoss, SquaredHingeLoss, SquaredLoss
from dkgp.solvers.risk import RISK_METHODS, Risk, RiskConjugateGradient, RiskSolution, minimise_risk
from tests.solvers.problems import smooth_problem
from tests.solvers.risk.running import minimised_by

PROBLEM = smooth_problem(200, 2, noise_variance=0.1, gamma=1.0)
K = PROBLEM.matrix - 0.1 * np.eye(200)
CONTINUOUS = PROBLEM.y[:, 0] + np.where(np.arange(200) % 20 == 0, 5.0, 0.0)
LABELS = np.where(CONTINUOUS > 0.2, 1.0, -1.0)
losses = pytest.mark.parametrize(
    ("loss", "targets"),
    [(SquaredLoss(), CONTINUOUS), (HuberLoss(0.5), CONTINUOUS), (LogisticLoss(), LABELS)],
    ids=["squared", "huber", "logistic"],
)


def minimised(executor: LocalExecutor, targets: np.ndarray, loss: Any, **options: Any) -> RiskSolution:
    options = {"regularisation": 0.1, "gap": 1e-5, "precision": "double"} | options
    return minimised_by(PROBLEM.blocked(executor), targets, loss=loss, **options)


def dense_least(loss: Any, targets: np.ndarray, regularisation: float, weights: np.ndarray | None = None) -> float:
    """By L-BFGS on L' alpha of all columns together."""
    y = targets.reshape(len(targets), -1)
    n, p = y.shape
    root = np.linalg.cholesky(K + 1e-10 * np.eye(n))
    counts = np.ones((n, 1)) if weights is None else weights[:, None]

    def risk(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w = flat.reshape(n, p)
        values = root @ w
        value = (counts * loss.value(y, values)).sum() + 0.5 * regularisation * (w * w).sum()
        return value, (root.T @ (counts * loss.slope(y, values)) + regularisation * w).ravel()

    options = {"maxiter": 5000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-9}
    return float(scipy.optimize.minimize(risk, np.zeros(n * p), jac=True, method="L-BFGS-B", options=options).fun)


def test_the_squared_loss_takes_the_closed_forms_way(executor: LocalExecutor) -> None:
    y = PROBLEM.y[:, 0]
    for count in (1, 2, 5):
        general = minimised(executor, y, SquaredLoss(), gap=1e-15, max_iterations=count)
        closed = solve(
            PROBLEM.blocked(executor),
            y,
            solver=KernelConjugateGradient("double"),
            stopping=GradientInfNorm(1e-15) | MaxIterations(count),
        )
        np.testing.assert_allclose(general.solution.alpha, closed.alpha, rtol=0, atol=1e-8)


def test_what_cannot_be_minimised(executor: LocalExecutor) -> None:
    operator = PROBLEM.blocked(executor)
    with pytest.raises(InputError, match="labels of -1 and 1; got 0"):
        minimise_risk(operator, np.zeros(200), loss=LogisticLoss(), regularisation=1.0)
    with pytest.raises(InputError, match=r"the targets must have shape \(200,\) or \(200, p\); got \(3, 1\)"):
        minimise_risk(operator, np.zeros(3), loss=SquaredLoss(), regularisation=1.0)
    with pytest.raises(InputError, match="the regularisation must be finite and positive; got 0.0"):
        minimise_risk(operator, np.zeros(200), loss=SquaredLoss(), regularisation=0.0)
    with pytest.raises(InputError, match=r"warm start has shape \(200, 2\); expected \(200, 1\)"):
        minimise_risk(operator, np.zeros(200), loss=SquaredLoss(), regularisation=1.0, initial=np.zeros((200, 2)))


@losses
def test_float32_rounds_end_in_bounds_of_float64(loss: Any, targets: np.ndarray, executor: LocalExecutor) -> None:
    solution = minimised(executor, targets, loss, precision="mixed")
    assert solution.solution.converged
    least, values = dense_least(loss, targets, 0.1), K @ solution.solution.alpha
    np.testing.assert_allclose(solution.values, values, rtol=0, atol=1e-10)
    risk = loss.value(targets[:, None], values).sum() + 0.05 * float(np.sum(solution.solution.alpha * values))
    assert solution.solution.progress.objective == pytest.approx(risk, rel=1e-12)
    assert solution.lower_bound[0] <= least * (1 + 1e-7) <= risk * (1 + 2e-7)
    assert risk - solution.lower_bound[0] <= 1e-5 * risk


def test_each_target_as_if_it_were_alone(executor: LocalExecutor) -> None:
    labels = np.column_stack([LABELS, -LABELS, np.roll(LABELS, 7)])
    together = minimised(executor, labels, LogisticLoss(), gap=1e-7)
    assert together.solution.converged
    np.testing.assert_allclose(together.values[:, 1], -together.values[:, 0], atol=1e-9)
    # Strong convexity: lambda ||f - f*||^2 / 2 is within the gap, and ||f||_inf^2 within ||f||^2.
    width = 2.0 * np.sqrt(2.0 * together.solution.progress.objective_gap_bound / 0.1)
    for target in range(3):
        alone = minimised(executor, labels[:, target], LogisticLoss(), gap=1e-7)
        np.testing.assert_allclose(together.values[:, [target]], alone.values, rtol=0, atol=width)


def test_started_near_the_least_it_needs_less(executor: LocalExecutor) -> None:
    cold = minimised(executor, LABELS, LogisticLoss())
    assert minimised(executor, LABELS, LogisticLoss(), initial=cold.solution.alpha).solution.progress.iteration == 0
    near = minimised(executor, LABELS, LogisticLoss(), initial=1.01 * cold.solution.alpha)
    assert near.solution.converged
    assert 0 < near.solution.progress.iteration < cold.solution.progress.iteration


@pytest.mark.parametrize("precision", ["mixed", "double"])
def test_equal_samples_close_the_gap(executor: LocalExecutor, precision: str) -> None:
    """K is singular: the risk does not see how alpha is shared out among equal samples, the dual does."""
    inputs, labels = np.repeat([[0.0, 1.0], [1.0, 0.0]], 6, axis=0), np.tile([1.0, 1.0, -1.0], 4)
    operator = BlockedKernelOperator(SquaredExponential((1.0, 2.0)), 0.1, ArrayInputs(inputs), executor)
    solution = minimised_by(operator, labels, loss=LogisticLoss(), regularisation=0.1, gap=1e-10, precision=precision)
    assert solution.solution.converged
    alike = solution.solution.alpha[labels == 1.0][:4]
    np.testing.assert_allclose(alike, np.broadcast_to(alike[0], alike.shape), rtol=1e-3)


@losses
def test_the_bound_by_the_gradient_is_as_near_as_proven(
    loss: Any, targets: np.ndarray, rng: np.random.Generator
) -> None:
    """Of any alpha: finite, below the least risk, and within ||grad R||^2 / (2 lambda) of the risk."""
    risk, y, least = Risk(loss, 0.1), targets[:, None], dense_least(loss, targets, 0.1)
    for scale in (0.0, 0.1, 10.0):
        alpha = scale * rng.standard_normal((200, 1))
        values = K @ alpha
        gradient = risk.gradient(y, alpha, values)
        here, width = risk.value(y, alpha, values), risk.width(gradient, K @ gradient)
        assert 0.0 < width[0] == pytest.approx(np.sum(gradient * (K @ gradient)) / 0.2, rel=1e-12)
        bound = here - width
        assert bound[0] <= least * (1 + 1e-7)
        slopes = loss.slope(y, values)
        assert bound[0] == pytest.approx(risk.dual(y, slopes, -K @ slopes / 0.1)[0], rel=1e-9, abs=1e-9)
        assert risk.lower_bound(y, alpha, values)[0] <= least * (1 + 1e-7)


CLASSES = np.digitize(CONTINUOUS, [-0.4, 0.5])
ONE_HOT = np.eye(3)[CLASSES]
every_loss = pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (SquaredLoss(), CONTINUOUS),
        (HuberLoss(0.5), CONTINUOUS),
        (LogisticLoss(), LABELS),
        (ProbitLoss(), LABELS),
        (SquaredHingeLoss(), LABELS),
        (SoftmaxLoss(), ONE_HOT),
    ],
    ids=["squared", "huber", "logistic", "probit", "hinge", "softmax"],
)
every_method = pytest.mark.parametrize("method", RISK_METHODS)


@pytest.mark.covering
@every_loss
@every_method
def test_every_method_finds_the_least_of_every_loss(
    method: str, loss: Any, targets: np.ndarray, executor: LocalExecutor
) -> None:
    weights, gap = np.linspace(0.0, 2.0, 200), 1e-4 if method == "paramcg" else 1e-6
    seen: list[Progress] = []
    found = minimised(
        executor, targets, loss, method=method, weights=weights, regularisation=1.0, gap=gap, callback=seen.append
    )
    assert found.solution.converged
    assert found.method == method
    least = dense_least(loss, targets, 1.0, weights)
    assert found.risk.sum() == pytest.approx(least, rel=2 * gap)
    assert found.lower_bound.sum() <= least * (1 + 1e-7)
    assert all(step.objective - step.objective_gap_bound <= least * (1 + 1e-7) for step in seen)
    assert all(later.objective <= earlier.objective * (1 + 1e-12) for earlier, later in itertools.pairwise(seen))
    y, alpha = targets.reshape(200, -1), found.solution.alpha
    np.testing.assert_allclose(found.values, K @ alpha, rtol=0, atol=1e-8)
    np.testing.assert_allclose(found.gradient, weights[:, None] * loss.slope(y, K @ alpha) + alpha, rtol=0, atol=1e-8)
    np.testing.assert_allclose(found.gradient_image, K @ found.gradient, rtol=0, atol=1e-8)


def test_weights_are_repeated_samples(executor: LocalExecutor) -> None:
    counts = np.arange(200) % 3
    rows = np.repeat(np.arange(200), counts)
    repeated = BlockedKernelOperator(PROBLEM.kernel, 0.1, ArrayInputs(PROBLEM.X[rows]), executor)
    options: dict[str, Any] = {"loss": LogisticLoss(), "regularisation": 0.1, "gap": 1e-9, "precision": "double"}
    expected = minimised_by(repeated, LABELS[rows], **options)
    found = minimised_by(PROBLEM.blocked(executor), LABELS, weights=counts, **options)
    assert found.risk[0] == pytest.approx(expected.risk[0], rel=1e-8)
    width = 2.0 * np.sqrt(2.0 * 1e-8 * found.risk[0] / 0.1)
    np.testing.assert_allclose(found.values[rows], expected.values, rtol=0, atol=width)
    assert (found.solution.alpha[counts == 0] == 0.0).all()


def test_a_softmax_of_two_classes_is_a_logistic_of_twice_the_regularisation(executor: LocalExecutor) -> None:
    """Its columns cancel, so that the penalty of both is |d|^2 / 2 of their difference d: lambda counts half."""
    two = np.column_stack([LABELS > 0.0, LABELS < 0.0]).astype(float)
    softmax = minimised(executor, two, SoftmaxLoss(), regularisation=0.2, gap=1e-9)
    logistic = minimised(executor, LABELS, LogisticLoss(), regularisation=0.1, gap=1e-9)
    assert softmax.risk.shape == softmax.lower_bound.shape == (1,)
    assert softmax.risk[0] == pytest.approx(logistic.risk[0], rel=1e-8)
    np.testing.assert_allclose(softmax.values.sum(axis=1), 0.0, atol=1e-10)
    width = 2.0 * np.sqrt(2.0 * 1e-8 * logistic.risk[0] / 0.1)
    np.testing.assert_allclose(softmax.values[:, 0] - softmax.values[:, 1], logistic.values[:, 0], rtol=0, atol=width)


def test_methods_that_there_are_not(executor: LocalExecutor) -> None:
    with pytest.raises(UsageError, match="there is no method 'sgd' for a risk; there are auto, kcg"):
        minimised(executor, LABELS, LogisticLoss(), method="sgd")
    with pytest.raises(UsageError, match="the method is for .*'regularisation': 0.2.*; what is to be minimised is"):
        minimised(executor, LABELS, LogisticLoss(), method=RiskConjugateGradient(Risk(LogisticLoss(), 0.2)))
    for weights in (np.zeros(200), np.full(200, -1.0)):
        with pytest.raises(InputError, match="the weights of samples must be"):
            minimised(executor, LABELS, LogisticLoss(), weights=weights)
