"""Each term of the bound by itself, on cases in which it is nearly all there is.

Each term of the bound by itself, on cases in which it is nearly all there is.
"""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.kernels import SquaredExponential
from dkgp.models.classification.certificate import (
    DecisionCertificate,
    GradientLength,
    Minimum,
    RiskCertificate,
    certified_decisions,
)
from dkgp.models.classification.likelihoods import Likelihood, LikelihoodName
from dkgp.models.rounding import UNIT, product_roundings
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.block_tasks import BlockContext
from tests.models.classification.references import Approximation, exact_slopes
from tests.models.exact_gp import entry, mp, numbers

NO_ERRORS = np.zeros(1)


def certified(
    found: Minimum, likelihood: Likelihood, targets: np.ndarray, share: float, **more: Any
) -> RiskCertificate:
    n = len(found.alpha)
    length = GradientLength.of(found, targets, likelihood, 1.0, np.zeros(n), **more)
    return RiskCertificate.of(found, length, share, 1.0, np.zeros(n))


def evaluated(
    X: np.ndarray, kernel: SquaredExponential, noise: float, vectors: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(K + noise I) V as it is evaluated, and errors of rows."""
    with (
        closing(LocalExecutor(1)) as executor,
        BlockedKernelOperator(kernel, noise, ArrayInputs(X), executor) as operator,
    ):
        return operator.matmat(vectors), operator.row_errors()


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("name", ["logit", "probit", "softmax"])
def test_where_the_loss_says_nothing_the_bound_is_reached(name: LikelihoodName, share: float) -> None:
    """One sample that hardly counts: f* is zero, and what is found lies at the very edge of the ball."""
    likelihood = Likelihood(name, 3 if name == "softmax" else 2)
    targets = np.array([[0.0, 1.0, 0.0]]) if name == "softmax" else np.ones((1, 1))
    alpha = np.array([[0.6, 0.0, -0.8]]) if name == "softmax" else np.array([[0.7]])
    for regularisation in (0.3, 1.0, 8.0):
        gradient = regularisation * alpha
        found = Minimum(regularisation, alpha, alpha, gradient, gradient)
        certificate = certified(found, likelihood, targets, share, weights=np.array([1e-12]))
        decisions = found.stepped(share)
        bounds = certificate.decision_error_bound(decisions, np.ones(1), NO_ERRORS)
        distance = np.linalg.norm(decisions)
        assert distance <= bounds.max() <= distance * (1.0 + 1e-6)
        # Of columns that are one problem, every bound is of all together.
        np.testing.assert_allclose(bounds, bounds.max(), rtol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("told", [0.0, 0.5, 2.0, -1.0])
def test_a_gradient_that_is_told_wrongly_is_made_up_for(told: float, share: float) -> None:
    """The exact function is zero, and the gradient all of the penalty's; what is told of it is a share, or more."""
    alpha, likelihood = np.array([[0.7]]), Likelihood("logit", 2)
    gradient = told * 2.0 * alpha
    found = Minimum(2.0, alpha, alpha, gradient, gradient)
    certificate = certified(found, likelihood, np.ones((1, 1)), share, weights=np.array([1e-12]))
    decisions = found.stepped(share)
    bound = certificate.decision_error_bound(decisions, np.ones(1), NO_ERRORS)[0, 0]
    assert abs(decisions[0, 0]) <= bound * (1.0 + 1e-11)
    if told == 0.0:
        assert bound <= 0.7 * 1.02


def test_columns_that_are_problems_of_their_own_have_their_own_bounds() -> None:
    targets, alpha = np.array([[1.0, -1.0, -1.0]]), np.array([[0.6, 0.0, -0.8]])
    found = Minimum(2.0, alpha, alpha, 2.0 * alpha, 2.0 * alpha)
    certificate = certified(found, Likelihood("logit", 3), targets, 0.0, weights=np.array([1e-12]))
    np.testing.assert_allclose(certificate.radius, [0.6, 0.0, 0.8], atol=1e-11)


def test_two_coupled_decisions_differ_by_the_root_of_two_at_most() -> None:
    """An f* whose largest decision is another one's, as far from what is found as the radius allows."""
    certificate = RiskCertificate(1, (1.0,) * 3, (0.0,) * 3, (0.0,) * 3, coupled=True)
    edge = math.sqrt(0.5)
    for away, sure in ((0.999, False), (1.001, True)):
        decisions = away * np.array([[edge, -edge, -9.0]])
        bounds = certificate.decision_error_bound(decisions, np.ones(1), NO_ERRORS)
        assert certificate.certified(decisions, bounds, np.ones(1), NO_ERRORS)[0] == sure
        # What is not of the radius is of each of the two by itself.
        for more, still in ((0.0005, sure), (0.002, False)):
            wider = certificate.decision_error_bound(decisions, np.ones(1), NO_ERRORS, np.full((1, 3), more))
            assert certificate.certified(decisions, wider, np.ones(1), NO_ERRORS)[0] == still
    apart = replace(certificate, coupled=False)
    decisions = 1.001 * np.array([[edge, -edge, -9.0]])
    assert not apart.certified(decisions, np.ones((1, 3)), np.ones(1), NO_ERRORS)[0]


def test_a_radius_without_end_certifies_nothing_and_survives_json() -> None:
    certificate = RiskCertificate(1, (math.inf,) * 3, (0.0,) * 3, (0.0,) * 3, coupled=True)
    decisions = np.array([[1e9, 0.0, 0.0]])
    bounds = certificate.decision_error_bound(decisions, np.ones(1), NO_ERRORS)
    assert np.isinf(bounds).all()
    assert not certificate.certified(decisions, bounds, np.ones(1), NO_ERRORS)[0]
    assert certificate.to_json()["radius"] == [None] * 3
    assert RiskCertificate.from_json(certificate.to_json()) == certificate


@pytest.mark.covering
@pytest.mark.parametrize(
    ("noise", "gamma", "size"), [(2.0**-300, 1e-4, 1e9), (1e4, 1e-4, 1e9), (1e6, 1e6, 1.0), (2.0**-300, 10.0, 1e9)]
)
@pytest.mark.parametrize("name", ["logit", "probit", "softmax"])
def test_roundings_of_the_gradient_alone(
    name: LikelihoodName, noise: float, gamma: float, size: float, rng: np.random.Generator
) -> None:
    """A gradient that comes out small, of coefficients that cancel: the one there is in truth is all rounding."""
    likelihood = Likelihood(name, 3 if name == "softmax" else 2)
    n, t, kernel, regularisation = 40, likelihood.n_outputs, SquaredExponential((gamma, gamma)), 1e-9
    X = rng.normal(size=(n, 2))
    alpha = rng.normal(size=(n, t)) * size
    alpha -= alpha.mean(axis=0)
    codes = rng.integers(0, likelihood.n_classes, n)
    targets = np.eye(3)[codes] if name == "softmax" else np.where(codes, 1.0, -1.0)[:, None]
    with (
        closing(LocalExecutor(1)) as executor,
        BlockedKernelOperator(kernel, noise, ArrayInputs(X), executor) as operator,
    ):
        values, errors = operator.matmat(alpha) - noise * alpha, operator.row_errors()
    gradient = likelihood.loss.slope(targets, values) + regularisation * alpha
    found = Minimum(regularisation, alpha, values, gradient, np.zeros_like(gradient), noise=noise)
    length = GradientLength.of(found, targets, likelihood, 1.0, errors)
    sharp = GradientLength.of(
        found,
        targets,
        likelihood,
        1.0,
        errors,
        multiply=lambda vectors: (evaluated(X, kernel, noise, vectors)[0] - noise * vectors, 0.0),
    )
    rows = numbers(X)
    matrix = [[entry(kernel, a, b) for b in rows] for a in rows]
    off = []
    for column in range(t):
        true = [
            [mp.fsum(k * mp.mpf(float(a)) for k, a in zip(line, alpha[:, c], strict=True)) for c in range(t)]
            for line in matrix
        ]
        g = [
            exact_slopes(name, targets[i], true[i])[column]
            + mp.mpf(regularisation) * mp.mpf(float(alpha[i, column]))
            - mp.mpf(float(gradient[i, column]))
            for i in range(n)
        ]
        total = mp.fsum(g[i] * matrix[i][j] * g[j] for i in range(n) for j in range(n))
        off.append(float(mp.sqrt(max(total, mp.zero))))
    known = [float(np.linalg.norm(off))] * t if likelihood.coupled else off
    for column in range(t):
        assert 0.0 < known[column] <= sharp.off[column] <= length.off[column] <= 1e5 * known[column]
        assert gamma != 10.0 or sharp.off[column] < 0.6 * length.off[column]


def test_the_length_of_a_gradient_allows_for_what_its_product_rounds(rng: np.random.Generator) -> None:
    """Coefficients that cancel: g'K g as computed is rounding, and may come out below what it is."""
    n, kernel = 50, SquaredExponential((1e-6, 1e-6))
    X, rows_of = rng.normal(size=(n, 2)), []
    for _ in range(6):
        g = rng.normal(size=(n, 1))
        for power in range(3):
            g -= np.vander(X[:, 0], power + 1) @ np.linalg.lstsq(np.vander(X[:, 0], power + 1), g, rcond=None)[0]
        with (
            closing(LocalExecutor(1)) as executor,
            BlockedKernelOperator(kernel, 1e-300, ArrayInputs(X), executor) as one,
        ):
            image, errors = one.matmat(g), one.row_errors()
        found = Minimum(1.0, 0.0 * g, 0.0 * g, g, image)
        length = GradientLength.of(found, np.ones((n, 1)), Likelihood("logit", 2), 1.0, errors).length[0]
        rows = numbers(X)
        exact = mp.fsum(
            mp.mpf(float(g[i, 0])) * entry(kernel, rows[i], rows[j]) * mp.mpf(float(g[j, 0]))
            for i in range(n)
            for j in range(n)
        )
        assert mp.sqrt(exact) <= length
        rows_of.append(float(mp.sqrt(exact)) / length)
    assert max(rows_of) > 1e-4


def test_products_that_are_approximate_are_allowed_for(rng: np.random.Generator) -> None:
    """Values and K g that are off by as much as they may, in the worst direction."""
    n, error, likelihood = 30, 1e-3, Likelihood("logit", 2)
    alpha, targets = rng.normal(size=(n, 1)), np.where(rng.random((n, 1)) < 0.5, 1.0, -1.0)
    K = np.eye(n)
    for sign in (-1.0, 1.0):
        values = K @ alpha + sign * error
        gradient = likelihood.loss.slope(targets, values) + alpha
        found = Minimum(1.0, alpha, values, gradient, K @ gradient - error * np.sign(gradient), product_error=error)
        length = GradientLength.of(found, targets, likelihood, 1.0, np.zeros(n))
        assert float(np.linalg.norm(gradient)) <= length.length[0]
        true = likelihood.loss.slope(targets, alpha) + alpha
        assert float(np.abs(true - gradient).sum()) <= length.off[0] <= 1.1 * float(np.abs(true - gradient).sum())
        assert float(np.linalg.norm(true)) <= length.length[0] + length.off[0]


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_sums_may_be_off_by_every_addition_on_the_way(sign: float, rng: np.random.Generator) -> None:
    """Entries without errors, and values as far from the true ones as additions in the worst order take them."""
    n, likelihood = 30, Likelihood("logit", 2)
    alpha, targets, true = rng.normal(size=(n, 1)) * 1e12, np.ones((n, 1)), rng.normal(size=(n, 1))
    away = product_roundings(n) * UNIT * float(np.abs(alpha).sum())
    assert away > 0.05
    values = true + sign * away
    gradient = likelihood.loss.slope(targets, values) + 1e-30 * alpha
    found = Minimum(1e-30, alpha, values, gradient, gradient)
    length = GradientLength.of(found, targets, likelihood, 1.0, np.zeros(n))
    assert length.off[0] >= float(np.abs(likelihood.loss.slope(targets, true) - gradient).sum())


def test_a_slope_that_is_not_the_losses_is_seen(rng: np.random.Generator) -> None:
    """The gradient is not believed: one of another risk is as far off as it is."""
    n, likelihood = 20, Likelihood("logit", 2)
    alpha, targets = rng.normal(size=(n, 1)), np.ones((n, 1))
    weights = rng.uniform(0.5, 2.0, n)
    gradient = likelihood.loss.slope(targets, alpha) + alpha  # without the weights
    found = Minimum(1.0, alpha, alpha, gradient, gradient)
    length = GradientLength.of(found, targets, likelihood, 1.0, np.zeros(n), weights)
    true = weights[:, None] * likelihood.loss.slope(targets, alpha) + alpha
    assert length.off[0] >= float(np.linalg.norm(true - gradient))


def test_roundings_of_the_decision_alone(rng: np.random.Generator) -> None:
    """Of a certificate without a radius, the bound is what k_x'alpha rounds."""
    n, kernel = 60, SquaredExponential((1e-3, 1e-3))
    X, T = rng.normal(size=(n, 2)), rng.normal(size=(20, 2))
    alpha = rng.normal(size=(n, 2)) * 1e7
    magnitude = tuple(np.abs(alpha).sum(axis=0) * 1.01)
    bare = RiskCertificate(n, (0.0, 0.0), magnitude, tuple(10.0 * size for size in magnitude))
    decisions = kernel(T, X) @ alpha
    bounds = bare.decision_error_bound(decisions, np.ones(20), np.full(20, 10.0))
    ratios = []
    for x, found, bound in zip(numbers(T), decisions, bounds, strict=True):
        for column in range(2):
            true = mp.fsum(entry(kernel, row, x) * mp.mpf(float(alpha[i, column])) for i, row in enumerate(numbers(X)))
            ratios.append(float(abs(true - mp.mpf(float(found[column]))) / mp.mpf(float(bound[column]))))
    assert 1e-4 < max(ratios) <= 1.0


def test_the_centre_is_rounded_and_says_so(rng: np.random.Generator) -> None:
    """Coefficients far above the step to the centre: what is stored misses it by a rounding of theirs."""
    n = 30
    alpha = rng.normal(size=(n, 1)) * 1e12
    gradient = rng.normal(size=(n, 1))
    found = Minimum(1.0, alpha, alpha, gradient, gradient)
    length = GradientLength((1e-12,), (0.0,), coupled=False)
    certificate = RiskCertificate.of(found, length, 0.5, 1.0, np.zeros(n))
    exact = [mp.mpf(float(a)) - mp.mpf(float(g)) / 2 for a, g in zip(alpha[:, 0], gradient[:, 0], strict=True)]
    missed = mp.fsum(abs(mp.mpf(float(s)) - e) for s, e in zip(found.stepped(0.5)[:, 0], exact, strict=True))
    assert float(missed) <= certificate.radius[0] <= 10.0 * float(missed)


@dataclass
class Case:
    """A kernel matrix by features, K = Z Z', and a test sample; what is solved for is off by chosen residuals."""

    rng: np.random.Generator
    n: int
    rank: int

    def __post_init__(self) -> None:
        rng = self.rng
        self.Z = rng.standard_normal((self.n, self.rank)) * 10.0 ** rng.uniform(-2, 1, self.rank)
        if rng.uniform() < 0.4:
            self.Z[:, 0] = 10.0 ** rng.uniform(-1, 1)  # a constant
        self.z = np.zeros(self.rank) if rng.uniform() < 0.3 else self.Z[0] * rng.uniform(0, 2, self.rank)
        if rng.uniform() < 0.2:
            self.z, self.Z = self.Z[0].copy(), np.repeat(self.Z[:1], self.n, axis=0)
        self.noise = 10.0 ** rng.uniform(-2, 1) * 10.0 ** (rng.uniform(-1, 1, self.n) * rng.integers(0, 2))
        self.kbar = self.Z @ self.Z.T + np.diag(self.noise)
        self.kx, self.y = self.Z @ self.z, np.where(rng.uniform(size=self.n) < 0.5, 1.0, -1.0)
        bordered = np.zeros((self.n + 1, self.n + 1))
        bordered[:-1, :-1], bordered[-1, :-1], bordered[:-1, -1] = self.kbar, 1.0, 1.0
        self.bordered = bordered

    def direction(self) -> np.ndarray:
        """A residual: what Cauchy's inequality is an equality for, of the decision or of the ones; or any."""
        rng, choice = self.rng, self.rng.integers(5)
        if choice == 0:
            found = self.noise * np.linalg.solve(self.bordered, np.append(self.kx, 1.0))[:-1]
        elif choice == 1:
            found = self.noise * np.linalg.solve(self.kbar, self.kx)
        elif choice == 2:
            found = np.linalg.eigh(self.kbar)[1][:, -1]
        elif choice == 3:
            found = self.noise * np.linalg.solve(self.kbar, np.ones(self.n))
        else:
            found = rng.standard_normal(self.n)
        length = math.sqrt(float((found**2 / self.noise).sum()))
        return np.zeros(self.n) if length == 0.0 else found / length * rng.choice([-1.0, 1.0])

    def error_and_bound(self) -> tuple[float, float]:
        rng = self.rng
        residuals = np.column_stack(
            [self.direction() * 10.0 ** rng.uniform(-3, 0), self.direction() * rng.choice([0.0, 1e-3, 0.1, 1.0, 10.0])]
        )
        right = np.column_stack([self.y, np.ones(self.n)])
        solved = np.linalg.solve(self.kbar, right - residuals)
        total = solved[:, 1].sum()
        intercept = np.array([solved[:, 0].sum() / total if abs(total) > 1e-6 else 0.3])
        intercept += rng.choice([0.0, 0.0, 0.01])
        alpha = solved[:, :1] - solved[:, 1:] * intercept
        exact = np.append(self.kx, 1.0) @ np.linalg.solve(self.bordered, np.append(self.y, 0.0))
        decision = self.kx @ alpha + intercept
        certificate = DecisionCertificate.of(
            alpha,
            intercept,
            Approximation(solved, -residuals),
            self.noise,
            np.einsum("ij,ij->i", self.Z, self.Z),
            np.ones(self.n),
        )
        prior, ones = np.array([self.z @ self.z]), np.array([self.kx @ solved[:, 1]])
        bound = certificate.decision_error_bound(decision[None], ones, prior, np.ones(1))
        return abs(float(decision[0] - exact)), float(bound[0, 0])


def test_residuals_of_the_worst_directions_are_within_the_bound_and_reach_it() -> None:
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(1000):
        error, bound = Case(rng, int(rng.integers(2, 12)), int(rng.integers(1, 4))).error_and_bound()
        assert error <= bound * (1.0 + 1e-7) + 1e-10
        ratios.append(error / bound)
    assert max(ratios) > 0.999


def test_roundings_of_an_exact_gradient_alone(rng: np.random.Generator) -> None:
    """A gradient that comes out as zero, of coefficients that cancel: the residual there is is all rounding."""
    n, noise, kernel = 40, 1e-3, SquaredExponential((1e-4, 1e-4))
    X = rng.normal(size=(n, 2))
    solved = rng.normal(size=(n, 2)) * 1e9
    solved[:, 0] *= np.sign(rng.normal(size=n))
    executor = LocalExecutor(1)
    with BlockedKernelOperator(kernel, noise, ArrayInputs(X), executor) as operator:
        right, errors = operator.matmat(solved), operator.row_errors()
    executor.close()
    certificate = DecisionCertificate.of(
        solved[:, :1], np.zeros(1), Approximation(solved, np.zeros((n, 2))), noise, 1.0, errors
    )
    rows = numbers(X)
    matrix = [[entry(kernel, a, b) + (mp.mpf(noise) if a is b else 0) for b in rows] for a in rows]
    lengths = []
    for column in range(2):
        true = [
            mp.fsum(value * mp.mpf(float(weight)) for value, weight in zip(row, solved[:, column], strict=True))
            - mp.mpf(float(goal))
            for row, goal in zip(matrix, right[:, column], strict=True)
        ]
        lengths.append(float(mp.sqrt(mp.fsum(value**2 for value in true) / mp.mpf(noise))))
    assert 0.0 < lengths[0] <= certificate.residual[0] <= 1e4 * lengths[0]
    assert 0.0 < lengths[1] <= certificate.ones_residual <= 1e4 * lengths[1]


def test_roundings_of_an_exact_decision_alone(rng: np.random.Generator) -> None:
    """Of a certificate without any residual, the bound is what k_x'alpha + b rounds."""
    n, kernel = 60, SquaredExponential((1e-3, 1e-3))
    X, T = rng.normal(size=(n, 2)), rng.normal(size=(20, 2))
    alpha, intercept = rng.normal(size=(n, 2)) * 1e7, np.array([0.3, -1e9])
    errors = np.full(n, 10.0)
    certificate = DecisionCertificate.of(
        alpha, intercept, Approximation(np.zeros((n, 3)), np.zeros((n, 3))), 1.0, 1.0, errors
    )
    bare = replace(certificate, residual=(0.0, 0.0), imbalance=(0.0, 0.0))
    context = BlockContext("roundings", ArrayInputs(X), kernel, n)
    decisions, bounds = certified_decisions(context, bare, alpha, np.zeros(n), intercept, T)
    ratios = []
    for x, found, bound in zip(numbers(T), decisions, bounds, strict=True):
        for column in range(2):
            true = mp.mpf(float(intercept[column])) + mp.fsum(
                entry(kernel, row, x) * mp.mpf(float(alpha[i, column])) for i, row in enumerate(numbers(X))
            )
            ratios.append(float(abs(true - mp.mpf(float(found[column]))) / mp.mpf(float(bound[column]))))
    assert 1e-4 < max(ratios) <= 1.0
