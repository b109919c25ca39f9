"""Losses by their definitions: slopes and curvatures by differences, conjugates by a search, tails by mpmath."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.optimize

from dkgp.errors import InputError
from dkgp.solvers.losses import (
    HuberLoss,
    LogisticLoss,
    ProbitLoss,
    SoftmaxLoss,
    SquaredHingeLoss,
    SquaredLoss,
)

SIGNS = (1.0, -1.0)
ANY = (0.3, -1.7)
every_loss = pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (SquaredLoss(), ANY),
        (HuberLoss(0.5), ANY),
        (LogisticLoss(), SIGNS),
        (ProbitLoss(), SIGNS),
        (SquaredHingeLoss(), SIGNS),
    ],
    ids=["squared", "huber", "logistic", "probit", "hinge"],
)


@every_loss
def test_slopes_curvatures_and_conjugates_by_definition(loss: Any, targets: tuple[float, float]) -> None:
    grid = np.linspace(-30.0, 30.0, 60_001)
    for y in targets:
        many = np.full_like(grid, y)
        slope, curvature = loss.slope(many, grid), loss.curvature(many, grid)
        np.testing.assert_allclose(slope[1:-1], np.gradient(loss.value(many, grid), grid)[1:-1], atol=1e-3)
        by_difference = np.gradient(slope, grid)
        kinks = np.abs(np.diff(by_difference, append=by_difference[-1])) > 1e-2  # of Huber and hinge
        smooth = ~(kinks | np.roll(kinks, 1) | np.roll(kinks, -1) | np.roll(kinks, 2))
        np.testing.assert_allclose(curvature[1:-1][smooth[1:-1]], by_difference[1:-1][smooth[1:-1]], atol=1e-3)
        assert ((curvature >= 0.0) & (curvature <= loss.curvature_bound)).all()
        np.testing.assert_array_equal(loss.curvature_times(many, grid, grid), curvature * grid)
        for share in (0.1, 0.4):
            u = -share * y / abs(y)
            largest = np.max(u * grid - loss.value(many, grid))
            assert loss.conjugate(np.array([y]), np.array([u]))[0] == pytest.approx(largest, abs=1e-5)
        # Equality where the slope is that of the value, and no conjugate of what is no slope.
        values = np.linspace(-20.0, 20.0, 81)
        labels = np.full_like(values, y)
        found = loss.conjugate(labels, loss.slope(labels, values)) + loss.value(labels, values)
        np.testing.assert_allclose(found, loss.slope(labels, values) * values, atol=1e-11, rtol=1e-11)


def test_outside_their_domain_conjugates_are_infinite() -> None:
    for loss in (LogisticLoss(), ProbitLoss(), SquaredHingeLoss()):
        assert np.isinf(loss.conjugate(np.array([1.0, -1.0]), np.array([0.1, -0.1]))).all()
        assert np.isfinite(loss.conjugate(np.array([1.0, -1.0]), np.array([0.0, 0.0]))).all()
    assert np.isinf(HuberLoss(0.5).conjugate(np.array([1.0]), np.array([0.6])))[0]
    labels = np.array([[1.0, 0.0, 0.0]])
    for slopes in ([[0.1, -0.1, 0.0]], [[-0.5, 0.2, 0.2]], [[-1.2, 0.6, 0.6]]):
        assert np.isinf(SoftmaxLoss().conjugate(labels, np.array(slopes)))[0, 0]
    assert SoftmaxLoss().conjugate(labels, np.array([[-1.0, 0.5, 0.5]]))[0, 0] == pytest.approx(-np.log(2.0))
    assert SoftmaxLoss().conjugate(labels, np.zeros((1, 3)))[0, 0] == 0.0


@pytest.mark.parametrize("loss", [LogisticLoss(), ProbitLoss(), SoftmaxLoss(), SquaredHingeLoss(), HuberLoss()])
def test_huge_values_neither_overflow_nor_lose_their_sign(loss: Any) -> None:
    values = np.array([1e3, 1e8, 1e150])[:, None] * np.array([1.0, -1.0])
    targets = np.tile([1.0, 0.0] if loss.coupled else [1.0, 1.0], (3, 1))
    with np.errstate(divide="raise", invalid="raise"):
        slope, curvature = loss.slope(targets, values), loss.curvature(targets, values)
        root, value = loss.curvature_root(targets, values), loss.value(targets, values)
    assert np.isfinite(slope).all()
    assert all(np.isfinite(root.entries(i, j)).all() for i in range(2) for j in range(2))
    assert (value >= 0.0).all()
    assert ((curvature >= 0.0) & (curvature <= loss.curvature_bound)).all()
    with np.errstate(over="ignore"):
        conjugate = loss.conjugate(targets, slope)
    assert np.isfinite(conjugate[0]).all()


def test_the_probit_loss_keeps_its_digits_far_out() -> None:
    margins = np.array([-1e6, -1e4, -250.0, -199.0, -150.0, -30.0, -3.0, 0.0, 2.0, 7.0, 30.0])
    loss, ones = ProbitLoss(), np.ones_like(margins)
    slope, curvature = loss.slope(ones, margins), loss.curvature(ones, margins)
    conjugate = loss.conjugate(ones, slope)
    with mpmath.workdps(60):
        for at, margin in enumerate(margins):
            m = mpmath.mpf(float(margin))
            # Phi(m) by erfc, which has all digits to the left.
            below = mpmath.erfc(-m / mpmath.sqrt(2)) / 2
            hazard = mpmath.npdf(m) / below
            assert -slope[at] == pytest.approx(float(hazard), rel=1e-13)
            assert curvature[at] == pytest.approx(float(hazard * (hazard + m)), rel=1e-9)
            pull = mpmath.mpf(float(-slope[at]))
            # The supremum is as flat as can be about m, which the slope has come from.
            exact = mpmath.log(below) - pull * m
            assert conjugate[at] == pytest.approx(float(exact), rel=1e-11)


def test_softmax_by_naive_loops(rng: np.random.Generator) -> None:
    n, classes = 7, 4
    values, vectors = 3.0 * rng.standard_normal((n, classes)), rng.standard_normal((n, classes))
    targets = np.eye(classes)[rng.integers(0, classes, n)]
    loss = SoftmaxLoss()
    root = loss.curvature_root(targets, values)
    for i in range(n):
        shares = np.exp(values[i]) / np.exp(values[i]).sum()
        hessian = np.diag(shares) - np.outer(shares, shares)
        assert loss.value(targets, values)[i, 0] == pytest.approx(-np.log(shares @ targets[i]))
        np.testing.assert_allclose(loss.slope(targets, values)[i], shares - targets[i], atol=1e-14)
        np.testing.assert_allclose(loss.curvature(targets, values)[i], np.diag(hessian), atol=1e-15)
        np.testing.assert_allclose(loss.curvature_times(targets, values, vectors)[i], hessian @ vectors[i], atol=1e-14)
        assert np.linalg.eigvalsh(hessian)[-1] <= loss.curvature_bound
        both = root.times(root.transposed_times(vectors))
        np.testing.assert_allclose(both[i], hessian @ vectors[i], atol=1e-14)
        u = shares - targets[i]
        found = scipy.optimize.minimize(
            lambda z, u=u, i=i: loss.value(targets[[i]], z[None])[0, 0] - u @ z, np.zeros(classes), tol=1e-12
        )
        assert loss.conjugate(targets[[i]], u[None])[0, 0] == pytest.approx(-found.fun, abs=1e-8)
    shares = np.exp(values) / np.exp(values).sum(axis=1, keepdims=True)
    for row in range(classes):
        for column in range(classes):
            expected = shares[:, row] * ((row == column) - shares[:, column])
            np.testing.assert_allclose(root.entries(row, column), expected, atol=1e-14)


def test_targets_that_a_loss_is_not_made_for() -> None:
    with pytest.raises(InputError, match="width of a Huber loss"):
        HuberLoss(0.0)
    with pytest.raises(InputError, match="the probit loss needs labels of -1 and 1; got 0"):
        ProbitLoss().check(np.zeros((2, 1)))
    with pytest.raises(InputError, match="the squared hinge loss needs labels of -1 and 1; got 2"):
        SquaredHingeLoss().check(np.full((2, 1), 2.0))
    with pytest.raises(InputError, match="a column for each of two classes or more; got 1"):
        SoftmaxLoss().check(np.ones((2, 1)))
    with pytest.raises(InputError, match="1 in the column of the label and 0 elsewhere; row 1 is not"):
        SoftmaxLoss().check(np.array([[1.0, 0.0], [1.0, 1.0]]))
