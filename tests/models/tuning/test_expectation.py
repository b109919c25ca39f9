"""The mean of a logistic sigmoid against adaptive quadrature in many digits."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_ndtr, ndtr

from dkgp.models.tuning.expectation import RELATIVE_ERROR, _product, expected_sigmoid

FEW = [(-50.0, 4.0), (-3.0, 0.7)]
MANY = [
    (mean, variance)
    for mean in (-50.0, -30.0, -10.0, -3.0, -0.1, 0.0, 0.5, 20.0, 50.0)
    for variance in (1e-8, 1e-3, 0.3, 0.99, 1.0, 1.01, 4.0, 30.0, 100.0, 1e3, 1e4)
]


def by_quadrature(mean, variance):
    """E[sigma(F)] by mpmath, its intervals around all three places where the integrand may have its weight."""
    with mpmath.workdps(30):
        m, s = mpmath.mpf(mean), mpmath.sqrt(mpmath.mpf(variance))
        ends = {mpmath.mpf(-60), mpmath.mpf(60)}
        ends |= {place + step for place in (mpmath.mpf(0), -m / s, s) for step in range(-12, 13, 2)}
        if s > 20:
            ends |= {-m / s + mpmath.mpf(step) / s for step in range(-60, 61, 6)}
        inside = sorted(end for end in ends if abs(end) <= 60)
        return mpmath.quad(lambda z: mpmath.npdf(z) / (1 + mpmath.exp(-(m + s * z))), inside)


@pytest.mark.parametrize(("mean", "variance"), FEW)
def test_both_tails_are_right_to_their_own_size(mean, variance):
    _check(mean, variance)


@pytest.mark.slow
@pytest.mark.parametrize("variance", sorted({variance for _, variance in MANY}))
def test_both_tails_are_right_everywhere(variance):
    for mean in sorted({mean for mean, _ in MANY}):
        _check(mean, variance)


def _check(mean, variance):
    positive, negative = expected_sigmoid(np.array([mean]), np.array([variance]))
    assert abs(positive[0] / float(by_quadrature(mean, variance)) - 1.0) < RELATIVE_ERROR
    assert abs(negative[0] / float(by_quadrature(-mean, variance)) - 1.0) < RELATIVE_ERROR


def in_forty_digits(mean, variance):
    """E[sigma(F)] of m < 0 as a sum in steps of a sixth, for wide F far out: off by e^-59 of itself."""
    logistic = np.arange(-800.0, 60.0)
    sizes = log_ndtr((mean - logistic) / np.sqrt(variance)) - np.logaddexp(logistic, 0.0) - np.logaddexp(-logistic, 0.0)
    within = logistic[sizes > sizes.max() - 70.0]
    with mpmath.workdps(40):
        m, s, h = mpmath.mpf(mean), mpmath.sqrt(mpmath.mpf(variance)), mpmath.mpf(1) / 6
        nodes = (k * h for k in range(6 * int(within[0]) - 6, 6 * int(within[-1]) + 7))
        return h * mpmath.fsum(mpmath.ncdf((m - node) / s) * mpmath.sech(node / 2) ** 2 / 4 for node in nodes)


# Roundings of z = m / s, amplified by its square: up to 2.6e-13 where they are counted once.
@pytest.mark.parametrize(
    ("mean", "variance"), [(-305339.3, 6.74e7), (-22236410.270454146, 377695409541.98956), (-2081.63, 3626.74)]
)
def test_tails_of_wide_functions_are_right_to_their_own_size(mean, variance):
    positive, _ = expected_sigmoid(np.array([mean]), np.array([variance]))
    assert abs(float(positive[0] / in_forty_digits(mean, variance)) - 1.0) < RELATIVE_ERROR


@pytest.mark.slow
def test_tails_of_wide_functions_are_right_on_a_hostile_grid(rng):
    far, variance = rng.uniform(5.0, 36.9, 80), 10.0 ** rng.uniform(0.0, 15.0, 80)
    for mean, v in zip((-far * np.sqrt(variance)).tolist(), variance.tolist(), strict=True):
        exact = in_forty_digits(mean, v)
        if exact > 1e-303:
            positive, negative = expected_sigmoid(np.array([mean, -mean]), np.array([v, v]))
            assert abs(float(positive[0] / exact) - 1.0) < RELATIVE_ERROR
            assert abs(float(negative[1] / exact) - 1.0) < RELATIVE_ERROR


@pytest.mark.parametrize("variance", [1.0000001, 1e6, 1e150, 1.7e308])
def test_means_and_variances_of_any_size_have_averages(variance):
    mean = np.array([0.0, -1e-300, -1.0, -1e100, -1.7e308])
    positive, negative = expected_sigmoid(mean, np.full(5, variance))
    assert_allclose(positive + negative, 1.0, rtol=1e-15)
    assert (np.diff(positive) <= 0.0).all()
    assert positive[0] == pytest.approx(0.5, rel=1e-13)
    with np.errstate(over="ignore"):
        assert_allclose(positive[3:], ndtr(mean[3:] / np.sqrt(variance + 3.3)), atol=1e-300, rtol=1e-8)


def test_a_function_of_which_nothing_is_known_is_a_toss():
    positive, negative = expected_sigmoid(np.array([3.0, -1e300, 0.0]), np.full(3, np.inf))
    assert positive.tolist() == negative.tolist() == [0.5, 0.5, 0.5]


def test_a_function_that_is_known_has_the_sigmoid_itself():
    mean = np.linspace(-700.0, 700.0, 141)
    positive, _ = expected_sigmoid(mean, np.zeros(141))
    assert_allclose(positive, 1.0 / (1.0 + np.exp(-mean)), rtol=1e-13)


def test_an_average_far_out_is_a_share_of_the_normal_tail_and_no_row_depends_on_others(rng):
    positive, negative = expected_sigmoid(np.array([-3000.0, 3000.0]), np.array([1e6, 1e6]))
    # A step of the logistic distribution's width, on a normal that is far wider.
    assert_allclose(positive[0], ndtr(-3000.0 / np.sqrt(1e6 + np.pi**2 / 3.0)), rtol=1e-8)
    assert_allclose(negative[1], positive[0], rtol=1e-15)
    mean, variance = rng.normal(0.0, 40.0, 500), rng.exponential(20.0, 500)
    together, _ = expected_sigmoid(mean, variance)
    alone = np.concatenate([expected_sigmoid(mean[i : i + 1], variance[i : i + 1])[0] for i in range(500)])
    assert_array_equal(together, alone)


def test_a_product_and_what_its_rounding_took_off_are_the_product(rng):
    a, b = rng.normal(size=(2, 500)) * 10.0 ** rng.uniform(-60, 60, (2, 500))
    product, rest = _product(a, b)
    assert_array_equal(product, a * b)
    for i in range(500):
        assert Fraction(product[i]) + Fraction(rest[i]) == Fraction(a[i]) * Fraction(b[i])
