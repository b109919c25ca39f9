"""The exact line search against a root finder, on losses written down anew.

Kernel conjugate gradient on other losses, against a general optimiser that has the whole kernel matrix.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError, UsageError
from dkgp.kernels import SquaredExponential
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import ArrayInputs
from dkgp.solvers import GradientInfNorm, KernelConjugateGradient, MaxIterations, Progress, solve
from dkgp.solvers.losses import HuberLoss, LogisticLoss, ProbitLoss, SoftmaxLoss, SquaredHingeLoss, SquaredLoss
from dkgp.solvers.risk import RISK_METHODS, RiskConjugateGradient, RiskSolution, minimise_risk
from dkgp.solvers.risk.problem import Risk, line_minima
from tests.solvers.problems import smooth_problem
from tests.solvers.risk.running import minimised_by

N, COLUMNS = 30, 3
EPS = float(np.finfo(np.float64).eps)
Slope = Callable[[FloatArray, FloatArray], FloatArray]


def softmax_slope(targets: FloatArray, values: FloatArray) -> FloatArray:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True) - targets)


def probit_slope(targets: FloatArray, values: FloatArray) -> FloatArray:
    margin = targets * values
    near = np.maximum(margin, -30.0)
    ratio, away = scipy.stats.norm.pdf(near) / scipy.stats.norm.cdf(near), np.maximum(-margin, 30.0)
    # Laplace's continued fraction, where densities underflow.
    fraction = away
    for number in range(20, 0, -1):
        fraction = away + number / fraction
    return np.asarray(-targets * np.where(margin < -30.0, fraction, ratio))


LOSSES: dict[str, tuple[Any, Slope]] = {
    "logistic": (LogisticLoss(), lambda y, f: -0.5 * y * (1.0 - np.tanh(0.5 * y * f))),
    "probit": (ProbitLoss(), probit_slope),
    "softmax": (SoftmaxLoss(), softmax_slope),
    "squared hinge": (SquaredHingeLoss(), lambda y, f: np.where(y * f < 1.0, f - y, 0.0)),
    "huber": (HuberLoss(0.3), lambda y, f: np.sign(f - y) * np.minimum(np.abs(f - y), 0.3)),
    "squares": (SquaredLoss(), lambda y, f: f - y),
}
every_loss = pytest.mark.parametrize("name", LOSSES)


class Lines:
    """Lines of a few problems, each with a slope along it that is summed sample by sample."""

    def __init__(self, name: str, seed: int, *, start: float, regularisation: float, scales: FloatArray) -> None:
        rng = np.random.default_rng(seed)
        self.loss, self._slope = LOSSES[name]
        root = rng.standard_normal((N, N + 2))
        matrix = root @ root.T / N
        if self.loss.coupled:
            self.targets = np.eye(COLUMNS)[rng.integers(0, COLUMNS, N)]
        elif name in ("huber", "squares"):
            self.targets = rng.standard_normal((N, COLUMNS)) * np.array([1e-2, 1.0, 1e2])
        else:
            self.targets = np.where(rng.standard_normal((N, COLUMNS)) > 0.0, 1.0, -1.0)
        self.weights = 1.0 + rng.integers(0, 3, N)
        self.risk = Risk(self.loss, regularisation, self.weights)
        self.alpha = start * rng.standard_normal((N, COLUMNS))
        self.values = matrix @ self.alpha
        gradient = self.weights[:, None] * self._slope(self.targets, self.values) + regularisation * self.alpha
        self.direction = -gradient * (scales[0] if self.loss.coupled else scales)
        self.image = matrix @ self.direction

    def steps(self) -> FloatArray:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            return line_minima(self.risk, self.targets, self.alpha, self.values, self.direction, self.image)

    @property
    def count(self) -> int:
        return 1 if self.loss.coupled else COLUMNS

    def slope(self, place: int, step: float) -> float:
        """Derivative of the risk by the step, of one problem."""
        own = slice(None) if self.loss.coupled else slice(place, place + 1)
        at = self.values + step * self.image
        pull = self.weights[:, None] * self._slope(self.targets, at) + self.risk.regularisation * (
            self.alpha + step * self.direction
        )
        return float(np.sum((pull * self.image)[:, own]))

    def noise(self, place: int) -> float:
        """Return the rounding error of the slope at the start, and of a difference from it."""
        own = slice(None) if self.loss.coupled else slice(place, place + 1)
        pull = self.weights[:, None] * self._slope(self.targets, self.values) + self.risk.regularisation * self.alpha
        return 30.0 * EPS * float(np.sum(np.abs(pull * self.image)[:, own]))

    def root(self, place: int) -> float:
        """The step where the slope changes its sign, by scipy."""
        low = high = 1.0
        while self.slope(place, high) < 0.0:
            low, high = high, 2.0 * high
        while self.slope(place, low) >= 0.0:
            low, high = 0.5 * low, low
        return float(
            scipy.optimize.brentq(lambda step: self.slope(place, step), low, high, xtol=1e-300, rtol=4.0 * EPS)
        )

    def first_newton(self, place: int) -> float:
        """Newton's first step from the start, the curvature by a difference of the true slopes."""
        little = 1e-7 * self.root(place)
        return -self.slope(place, 0.0) * little / (self.slope(place, little) - self.slope(place, 0.0))

    def assert_least(self, place: int, step: float) -> None:
        """At the root, or where roundings leave nothing of the slope."""
        root, noise = self.root(place), self.noise(place)
        if step != pytest.approx(root, rel=1e-10):
            assert abs(self.slope(place, step)) <= noise
            assert self.slope(place, step * (1.0 - 1e-6)) < noise
            assert self.slope(place, step * (1.0 + 1e-6)) > -noise


@pytest.mark.covering
@every_loss
@pytest.mark.parametrize("regularisation", [1e-6, 1e-2, 10.0])
@pytest.mark.parametrize("start", [0.0, 1.0, 30.0])
def test_steps_of_several_columns_are_those_of_a_root_finder(name: str, start: float, regularisation: float) -> None:
    for seed in range(3):
        lines = Lines(name, seed, start=start, regularisation=regularisation, scales=np.array([1.0, 0.01, 50.0]))
        steps = lines.steps()
        assert steps.shape == (lines.count,)
        for place, step in enumerate(steps):
            lines.assert_least(place, step)


@every_loss
@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
def test_directions_of_any_length_lead_to_one_point(name: str, scale: float) -> None:
    plain, scaled = (
        Lines(name, 5, start=0.3, regularisation=1e-3, scales=np.array([1.0, 2.0, 3.0]) * factor).steps()
        for factor in (1.0, scale)
    )
    np.testing.assert_allclose(scaled * scale, plain, rtol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "short"),
    [
        *((name, True) for name in ("logistic", "probit", "softmax", "squared hinge")),
        *((name, False) for name in ("logistic", "softmax", "squared hinge", "huber")),
    ],
)
def test_newtons_first_step_falls_short_or_goes_too_far(name: str, short: bool) -> None:
    """Either happens where curvature changes, and the search ends at the least risk all the same."""
    met = 0
    for seed in range(40):
        lines = Lines(
            name, seed, start=(0.0, 0.3, 3.0)[seed % 3], regularisation=1e-4, scales=np.array([1.0, 0.1, 7.0])
        )
        steps = lines.steps()
        for place, step in enumerate(steps):
            first, root = lines.first_newton(place), lines.root(place)
            if first < 0.99 * root if short else first > 1.01 * root:
                met += 1
                lines.assert_least(place, step)
    assert met >= 5


def test_logistic_steps_from_zero_are_not_newtons_first() -> None:
    """Curvature falls on the way from zero, the most that there is: Newton's first step always undershoots."""
    lines = Lines("logistic", 1, start=0.0, regularisation=1e-3, scales=np.ones(COLUMNS))
    for place, step in enumerate(lines.steps()):
        assert step > 1.02 * lines.first_newton(place)
        assert step == pytest.approx(lines.root(place), rel=1e-11)


@every_loss
def test_values_far_out_come_back(name: str) -> None:
    """If every curvature but the penalty's underflows, Newton's step is longer by orders of magnitude."""
    for start in (1e3, 1e6):
        lines = Lines(name, 7, start=start, regularisation=1e-8, scales=np.array([1.0, 1e-3, 1e3]))
        for place, step in enumerate(lines.steps()):
            lines.assert_least(place, step)


@every_loss
def test_no_way_down_is_no_step(name: str) -> None:
    """Uphill, along nothing, where the kernel sees nothing, and at the least itself; the other columns go on."""
    lines = Lines(name, 3, start=0.5, regularisation=0.1, scales=np.array([1.0, 1.0, 1.0]))
    expected = lines.steps()
    least = lines.alpha + expected * lines.direction, lines.values + expected * lines.image
    lines.direction, lines.image = -lines.direction, -lines.image
    np.testing.assert_array_equal(lines.steps(), np.zeros(lines.count))
    lines.direction[:, -1] *= -1.0
    lines.image[:, -1] *= -1.0
    if not lines.loss.coupled:
        np.testing.assert_allclose(lines.steps(), [0.0, 0.0, expected[-1]], rtol=1e-9)
    lines = Lines(name, 3, start=0.5, regularisation=0.1, scales=np.array([1.0, 1.0, 1.0]))
    # K h = 0: the risk does not change, whatever the coefficients do.
    columns = slice(None) if lines.loss.coupled else slice(1, 2)
    lines.image[:, columns] = 0.0
    steps = lines.steps()
    assert steps[0 if lines.loss.coupled else 1] == 0.0
    if not lines.loss.coupled:
        np.testing.assert_allclose(steps[[0, 2]], expected[[0, 2]], rtol=1e-9)
    lines = Lines(name, 3, start=0.5, regularisation=0.1, scales=np.array([1.0, 1.0, 1.0]))
    lines.alpha, lines.values = least
    further = lines.steps()
    assert (further <= 1e-9 * expected).all()


def test_a_flat_stretch_is_crossed() -> None:
    """All samples beyond the hinge's margin on the way: the penalty alone has a slope there, and ends at a kink."""
    targets, weights = np.array([[1.0], [-1.0]]), None
    risk = Risk(SquaredHingeLoss(), 1e-3, weights)
    alpha, matrix = np.array([[50.0], [-50.0]]), np.array([[1.0, 0.2], [0.2, 1.0]])
    values, direction = matrix @ alpha, -alpha
    image = matrix @ direction
    (step,) = line_minima(risk, targets, alpha, values, direction, image)
    # R(1 - t) = (1 - 40 u)^2 + 1e-3 * 4000 u^2 / 2 with u = 1 - t below 1 / 40.
    assert 1.0 - step == pytest.approx(80.0 / (2.0 * 1600.0 + 4.0), rel=1e-12)


def test_along_a_line_without_an_end_the_step_stays_finite() -> None:
    """Labels that can be told apart and hardly any penalty: as far as the logarithm of its inverse, no further."""
    targets, matrix = np.array([[1.0], [-1.0]]), np.array([[1.0, 0.2], [0.2, 1.0]])
    for regularisation in (1e-12, 1e-100, 1e-300):
        risk = Risk(LogisticLoss(), regularisation)
        direction = targets.copy()
        nothing = np.zeros_like(targets)
        (step,) = line_minima(risk, targets, nothing, nothing, direction, matrix @ direction)

        def slope(t: float, penalty: float = regularisation) -> float:
            return -1.6 * float(np.exp(-np.logaddexp(0.0, 0.8 * t))) + 1.6 * penalty * t

        least = scipy.optimize.brentq(slope, 1e-3, 2.0**12, rtol=4.0 * EPS)
        # A slope of 1e-13 of the first is none.
        assert step == pytest.approx(least, rel=1e-9) or 30.0 < step < least
        assert abs(slope(step)) <= 1e-13 * abs(slope(0.0)) * (1.0 + 1e-9)


@pytest.mark.parametrize("target", [0.75, 3.0, 700.0, 1e6])
def test_the_end_of_a_straight_stretch_is_bracketed_by_doubling(target: float) -> None:
    """No curvature where it begins, and next to none by the penalty: Newton's step says nothing."""
    targets, nothing, one = np.array([[target]]), np.zeros((1, 1)), np.ones((1, 1))
    (step,) = line_minima(Risk(HuberLoss(0.3), 1e-60), targets, nothing, nothing, one, one)
    assert step == pytest.approx(target, rel=1e-12)


def test_no_step_is_longer_than_the_longest() -> None:
    """With the minimum at 2^103 the step ends on its way down; at 2^99 it is reached."""
    targets, nothing, one = np.array([[1e60]]), np.zeros((1, 1)), np.ones((1, 1))
    for far, least, most in ((2.0**103, 2.0**98, 2.0**100), (2.0**99, 2.0**99, 2.0**99)):
        (step,) = line_minima(Risk(HuberLoss(0.25), 0.25 / far), targets, nothing, nothing, one, one)
        assert least <= step <= most


class Falling(SquaredLoss):
    """A slope of -1 / (1 + f / s): Newton's step from zero is s, and every further one is longer."""

    far = 2.0**99.5

    def slope(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        return -1.0 / (1.0 + values / self.far)

    def curvature(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        return 1.0 / (self.far * (1.0 + values / self.far) ** 2)


def test_a_step_beyond_the_longest_is_the_last() -> None:
    nothing, one = np.zeros((1, 1)), np.ones((1, 1))
    (step,) = line_minima(Risk(Falling(), 1e-290), nothing, nothing, nothing, one, one)
    assert 2.0**99 <= step <= 2.0**101


class CountedSquares(SquaredLoss):
    """Counts how often its slopes are evaluated."""

    evaluated = 0

    def slope(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        type(self).evaluated += 1
        return super().slope(targets, values)


@pytest.mark.parametrize("penalty", [False, True], ids=["of the losses", "of losses and penalty"])
@pytest.mark.parametrize("seed", range(5))
def test_a_slope_of_roundings_ends_the_search(seed: int, penalty: bool) -> None:
    """Large terms that cancel leave no slope to speak of, however small the first one was."""
    rng = np.random.default_rng(seed)
    image, values, across = rng.standard_normal((500, 1)), np.zeros((500, 1)), 1e8 * rng.standard_normal((500, 1))
    for _ in range(3):
        across -= image * (across * image).sum() / (image * image).sum()
    # Slopes that are -y and the penalty's alpha: each a sum that cancels, or large and of opposite signs.
    targets, alpha = (-1e8 * image, across - 1e8 * image) if penalty else (across, values)
    targets = targets + 2e-8 * image
    CountedSquares.evaluated = 0
    (step,) = line_minima(Risk(CountedSquares(), 1.0), targets, alpha, values, values, image)
    assert 0.0 <= step < 1e-6
    # At the start, for the size of its terms, and at one step: there is nothing to be won by more.
    assert CountedSquares.evaluated <= 3


@every_loss
def test_a_line_has_the_same_bits_whatever_the_others_take(name: str) -> None:
    """Its search has ended while those along the others, which are other ones the second time, go on."""
    if LOSSES[name][0].coupled:
        return
    for seed in range(10):
        lines = Lines(name, seed, start=1.0, regularisation=1e-4, scales=np.array([1.0, 0.01, 50.0]))
        others = Lines(name, seed + 100, start=30.0, regularisation=1e-4, scales=np.array([1e-3, 7.0, 1e3]))
        for part in ("targets", "alpha", "values", "direction", "image"):
            getattr(others, part)[:, 0] = getattr(lines, part)[:, 0]
        others.risk = lines.risk
        assert others.steps()[0] == lines.steps()[0]


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
    """For any alpha it is finite, below the least risk, and within ||grad R||^2 / (2 lambda) of the risk."""
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
every_loss_and_its_targets = pytest.mark.parametrize(
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


@pytest.mark.spread(3)
@pytest.mark.covering
@every_loss_and_its_targets
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
    with pytest.raises(UsageError, match="the method is for .*'regularisation': 0.2.*; the risk to minimise has"):
        minimised(executor, LABELS, LogisticLoss(), method=RiskConjugateGradient(Risk(LogisticLoss(), 0.2)))
    for weights in (np.zeros(200), np.full(200, -1.0)):
        with pytest.raises(InputError, match="the weights of samples must be"):
            minimised(executor, LABELS, LogisticLoss(), weights=weights)
