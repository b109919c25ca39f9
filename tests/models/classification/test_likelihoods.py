"""Likelihoods: probabilities and their intervals against arithmetic of 300 bits at corners and inside of boxes.

Averaged probabilities and their intervals: against quadrature, and attacked corner by corner.
"""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Literal

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from mpmath import mpf
from numpy.testing import assert_allclose, assert_array_equal

from dkgp.codec import from_json, to_json
from dkgp.errors import InputError
from dkgp.models.classification import laplace as averages
from dkgp.models.classification.labels import Labels, decided
from dkgp.models.classification.laplace import averaged, averaged_intervals, averaged_softmax, settled
from dkgp.models.classification.likelihoods import Likelihood

TABLE = [("logit", 2), ("probit", 2), ("logit", 3), ("probit", 4), ("softmax", 3), ("softmax", 5)]


def exact(likelihood: Likelihood, row: list[mpf]) -> list[mpf]:
    """Probabilities of one row in 300 bits, of numbers that are exact."""
    with mpmath.workprec(300):

        def single(value: mpf) -> mpf:
            return (
                mpmath.erfc(-value / mpmath.sqrt(2)) / 2
                if likelihood.name == "probit"
                else 1 / (1 + mpmath.exp(-value))
            )

        if likelihood.n_outputs == 1:
            return [single(-row[0]), single(row[0])]
        each = [mpmath.exp(value) if likelihood.name == "softmax" else single(value) for value in row]
        return [value / mpmath.fsum(each) for value in each]


@pytest.mark.parametrize(("name", "classes"), TABLE)
def test_intervals_hold_the_probabilities_of_every_function_in_the_box(
    rng: np.random.Generator, name: Literal["logit", "probit", "softmax"], classes: int
) -> None:
    likelihood = Likelihood(name, classes)
    t = likelihood.n_outputs
    scale = np.array([1e-9, 0.1, 1.0, 6.0, 30.0, 200.0])[rng.integers(0, 6, size=(40, 1))]
    decisions = scale * rng.normal(size=(40, t))
    bounds = np.array([0.0, 1e-15, 1e-6, 0.1, 2.0, 50.0])[rng.integers(0, 6, size=(40, 1))] * rng.random((40, t))
    lower, upper = likelihood.intervals(decisions, bounds)
    own = np.arange(40) % classes
    targets = likelihood.targets(Labels(tuple("abcde"[:classes]), own))
    steep, flat = likelihood.slopes(targets, decisions, bounds)
    assert ((lower >= 0.0) & (upper <= 1.0)).all()
    plug_in = likelihood.probabilities(decisions)
    assert ((lower <= plug_in) & (plug_in <= upper)).all()
    np.testing.assert_allclose(plug_in.sum(axis=1), 1.0, rtol=1e-14)
    for row in range(40):
        centre, away = [mpf(v) for v in decisions[row]], [mpf(v) for v in bounds[row]]
        corners = [[-1] * t, [1] * t] + [[1 if c == k else -1 for c in range(t)] for k in range(t)]
        corners += [[-s for s in signs] for signs in corners[2:]] + [rng.uniform(-1, 1, t).tolist() for _ in range(3)]
        for signs in corners:
            with mpmath.workprec(300):
                point = [f + mpf(s) * b for f, s, b in zip(centre, signs, away, strict=True)]
            for c, known in enumerate(exact(likelihood, point)):
                assert mpf(lower[row, c]) <= known <= mpf(upper[row, c]), (decisions[row], bounds[row], signs, c)
                if likelihood.coupled:
                    with mpmath.workprec(300):
                        slope = known - mpf(targets[row, c])
                    assert mpf(steep[row, c]) <= slope <= mpf(flat[row, c])
                elif (name, classes) == ("logit", 2) and c != own[row]:
                    # -y times the probability of the other class.
                    assert mpf(steep[row, 0]) <= (known if c else -known) <= mpf(flat[row, 0])


def test_far_in_the_normal_tail_an_arguments_rounding_counts(rng: np.random.Generator) -> None:
    likelihood = Likelihood("probit", 2)
    decisions = rng.uniform(-36.0, -5.0, size=(300, 1))
    lower, upper = likelihood.intervals(decisions, np.zeros_like(decisions))
    ones = np.ones_like(decisions)
    steep, flat = likelihood.slopes(ones, decisions, 0.0 * ones)
    assert (upper[:, 1] <= lower[:, 1] * (1.0 + 1e-11)).all()
    with mpmath.workprec(300):
        for row in range(300):
            z = mpf(decisions[row, 0])
            share = mpmath.erfc(-z / mpmath.sqrt(2)) / 2
            hazard = mpmath.exp(-z * z / 2) / mpmath.sqrt(2 * mpmath.pi) / share
            assert mpf(lower[row, 1]) <= share <= mpf(upper[row, 1])
            assert mpf(steep[row, 0]) <= -hazard <= mpf(flat[row, 0])


@pytest.mark.parametrize(("name", "classes"), TABLE)
def test_intervals_of_small_boxes_are_no_wider_than_the_likelihood_is_steep(
    rng: np.random.Generator, name: Literal["logit", "probit", "softmax"], classes: int
) -> None:
    likelihood = Likelihood(name, classes)
    decisions = rng.normal(size=(50, likelihood.n_outputs))
    lower, upper = likelihood.intervals(decisions, np.full_like(decisions, 1e-3))
    # dp/df is at most 1/4 (logit), 1/sqrt(2 pi) (probit); of a share, twice that over the sum, which exceeds 0.1 here.
    assert (upper - lower).max() < 2e-3 * (0.5 if likelihood.n_outputs == 1 else 4.0)
    exactly = likelihood.intervals(decisions, np.zeros_like(decisions))
    assert (exactly[1] - exactly[0]).max() < 3e-13


@pytest.mark.parametrize(("name", "classes"), TABLE)
def test_hostile_decisions_and_bounds(name: Literal["logit", "probit", "softmax"], classes: int) -> None:
    likelihood = Likelihood(name, classes)
    t = likelihood.n_outputs
    ones = np.ones((1, t))
    for size in (1e3, 1e15, 1e200, 1.7e308):
        for row in (size * ones, -size * ones, size * np.linspace(-1.0, 1.0, t)[None, :] if t > 1 else 0.0 * ones):
            plug_in = likelihood.probabilities(row)
            assert np.isfinite(plug_in).all()
            assert plug_in.sum() == pytest.approx(1.0)
            for bound in (0.0, 1.0, size, np.inf):
                lower, upper = likelihood.intervals(row, bound * ones)
                assert ((lower >= 0.0) & (lower <= plug_in) & (plug_in <= upper) & (upper <= 1.0)).all()
    lower, upper = likelihood.intervals(ones, np.inf * ones)
    assert lower.max() < 1e-300
    assert upper.min() == 1.0


@pytest.mark.parametrize(("name", "classes"), TABLE)
def test_the_decided_class_is_the_most_likely(
    rng: np.random.Generator, name: Literal["logit", "probit", "softmax"], classes: int
) -> None:
    likelihood = Likelihood(name, classes)
    decisions = rng.normal(size=(200, likelihood.n_outputs))
    np.testing.assert_array_equal(decided(decisions), likelihood.probabilities(decisions).argmax(axis=1))


def test_targets_are_signs_or_one_for_the_class() -> None:
    labels = Labels(("a", "b", "c"), np.array([2, 0, 1, 1]))
    np.testing.assert_array_equal(Likelihood("probit", 3).targets(labels), labels.signs())
    np.testing.assert_array_equal(Likelihood("softmax", 3).targets(labels), np.eye(3)[labels.codes])
    two = Labels(("a", "b"), np.array([1, 0]))
    np.testing.assert_array_equal(Likelihood("logit", 2).targets(two), [[1.0], [-1.0]])
    with pytest.raises(InputError, match="there are 2 classes; the likelihood is of 3"):
        Likelihood("logit", 3).targets(two)


def test_what_links_and_ways_with_several_classes_make() -> None:
    assert Likelihood.of("logit", "softmax", 2) == Likelihood("logit", 2)
    assert Likelihood.of("probit", "softmax", 2) == Likelihood("probit", 2)
    assert Likelihood.of("logit", "softmax", 4) == Likelihood("softmax", 4)
    assert Likelihood.of("probit", "ovr", 4) == Likelihood("probit", 4)
    made = [Likelihood("logit", 2), Likelihood("logit", 3), Likelihood("softmax", 3)]
    assert [(each.n_outputs, each.coupled) for each in made] == [(1, False), (3, False), (3, True)]
    for each in made:
        assert from_json(Likelihood, json.loads(json.dumps(to_json(each)))) == each


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("probit", "softmax", 3), "softmax goes with the link 'logit'"),
        (("cauchit", "ovr", 3), "the link is 'cauchit'; expected one of logit, probit"),
        (("logit", "ovo", 3), "`multi_class` is 'ovo'; expected one of softmax, ovr"),
        (("logit", "ovr", 1), "of 1 classes; expected 2 or more"),
    ],
)
def test_what_is_refused(arguments: tuple[str, str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Likelihood.of(*arguments)  # type: ignore[arg-type]


def test_shapes_that_are_refused() -> None:
    with pytest.raises(InputError, match="a likelihood 'softmax' of 2 classes; expected 3"):
        Likelihood("softmax", 2)
    with pytest.raises(InputError, match="the likelihood is 'poisson'"):
        Likelihood("poisson", 2)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"have shape \(4, 2\); expected \(r, 3\)"):
        Likelihood("softmax", 3).probabilities(np.zeros((4, 2)))
    with pytest.raises(InputError, match=r"have shape \(4,\); expected \(r, 1\)"):
        Likelihood("logit", 2).intervals(np.zeros((4, 1)), np.zeros(4))


LOGIT, PROBIT = Likelihood("logit", 2), Likelihood("probit", 2)


def sampled(sigmoid, mean, variance):
    """By adaptive quadrature."""

    def integrand(z):
        return sigmoid(mean + np.sqrt(variance) * z) * scipy.stats.norm.pdf(z)

    return scipy.integrate.quad(integrand, -12.0, 12.0, epsabs=1e-13, epsrel=1e-12)[0]


@pytest.mark.parametrize(("likelihood", "sigmoid"), [(LOGIT, scipy.special.expit), (PROBIT, scipy.special.ndtr)])
@pytest.mark.parametrize(("mean", "variance"), [(-2.0, 0.3), (0.7, 2.0), (4.0, 6.0)])
def test_two_classes_equal_quadrature(likelihood, sigmoid, mean, variance):
    found = averaged(likelihood, np.array([[mean]]), np.array([[variance]]))
    expected = sampled(sigmoid, mean, variance)
    assert_allclose(found, [[1.0 - expected, expected]], rtol=1e-9)


@pytest.mark.parametrize("name", ["logit", "probit"])
def test_one_against_the_rest_is_normalised(name, rng):
    likelihood = Likelihood(name, 4)
    mean, variance = rng.normal(0.0, 3.0, (50, 4)), rng.exponential(2.0, (50, 4))
    found = averaged(likelihood, mean, variance)
    two = Likelihood(name, 2)
    own = np.column_stack([averaged(two, mean[:, [c]], variance[:, [c]])[:, 1] for c in range(4)])
    assert_allclose(found, own / own.sum(axis=1, keepdims=True), rtol=1e-14)
    hopeless = averaged(likelihood, np.full((1, 4), -5000.0) + np.arange(4), np.zeros((1, 4)))
    assert_allclose(hopeless.sum(), 1.0)
    assert hopeless.argmax() == 3


def test_softmax_equals_quadrature_in_two_dimensions():
    """For three classes only differences count: a product rule in their plane."""
    mean, root = np.array([0.5, -1.0, 0.2]), np.array([[1.5, 0.0, 0.0], [0.4, 1.0, 0.0], [-0.3, 0.2, 2.0]])
    z, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack(np.meshgrid(z, z, z), axis=-1).reshape(-1, 3)
    product = np.prod(np.stack(np.meshgrid(weights, weights, weights), axis=-1).reshape(-1, 3), axis=1)
    expected = (product / product.sum()) @ scipy.special.softmax(grid @ root.T + mean, axis=1)
    found = averaged_softmax(mean[None], (root @ root.T)[None])
    assert_allclose(found[0], expected, atol=3e-4)
    known = averaged_softmax(mean[None], np.zeros((1, 3, 3)))
    assert_allclose(known[0], scipy.special.softmax(mean), rtol=1e-11)


@pytest.mark.covering
@pytest.mark.parametrize("name", ["logit", "probit"])
@pytest.mark.parametrize("classes", [2, 3])
def test_intervals_hold_every_average_in_the_box(name, classes, rng):
    likelihood = Likelihood(name, classes)
    r, t = 400, likelihood.n_outputs
    mean = rng.normal(0.0, 1.0, (r, t)) * 10.0 ** rng.uniform(-3.0, 1.7, (r, 1))
    bound = np.abs(rng.normal(0.0, 1.0, (r, t))) * 10.0 ** rng.uniform(-8.0, 1.0, (r, 1))
    low = rng.exponential(1.0, (r, t)) * 10.0 ** rng.uniform(-8.0, 4.0, (r, 1))
    high = low * (1.0 + rng.exponential(1.0, (r, t)) * 10.0 ** rng.uniform(-8.0, 1.0, (r, 1)))
    lower, upper = averaged_intervals(likelihood, mean, bound, low, high)
    assert ((lower >= 0.0) & (upper <= 1.0)).all()
    for draw in range(40):
        m = mean + bound * (rng.uniform(-1.0, 1.0, (r, t)) if draw > 3 else rng.choice([-1.0, 1.0], (r, t)))
        v = low + (high - low) * (rng.uniform(0.0, 1.0, (r, t)) if draw > 3 else rng.choice([0.0, 1.0], (r, t)))
        found = averaged(likelihood, m, v)
        assert ((lower <= found) & (found <= upper)).all()


def test_intervals_are_no_wider_than_the_box_makes_them():
    """Both ends are met, at the corners: a mean above zero has its least average at the most variance."""
    box = [np.array([[value]]) for value in (1.0, 0.25, 0.5, 3.0)]
    lower, upper = averaged_intervals(LOGIT, *box)
    assert_allclose(lower[0, 1], sampled(scipy.special.expit, 0.75, 3.0), rtol=1e-9)
    assert_allclose(upper[0, 1], sampled(scipy.special.expit, 1.25, 0.5), rtol=1e-9)
    assert_allclose(lower[0] + upper[0, ::-1], 1.0, rtol=1e-12)
    across = [np.array([[value]]) for value in (0.0, 0.5, 0.5, 3.0)]
    lower, upper = averaged_intervals(PROBIT, *across)
    assert_allclose(
        [lower[0, 1], upper[0, 1]], scipy.special.ndtr([-0.5 / np.sqrt(1.5), 0.5 / np.sqrt(1.5)]), rtol=1e-9
    )


def test_tails_keep_their_digits_and_infinite_bounds_tell_nothing():
    lower, upper = averaged_intervals(LOGIT, *(np.array([[value]]) for value in (-50.0, 1e-6, 1.0, 1.0 + 1e-9)))
    exact = 3.180e-22  # e^(-50 + 1/2), but for e^-99
    assert_allclose([lower[0, 1], upper[0, 1]], exact, rtol=1e-3)
    lower, upper = averaged_intervals(PROBIT, *(np.array([[value]]) for value in (3.0, np.inf, 0.0, 1.0)))
    assert_array_equal([lower[0], upper[0]], [[0.0, 0.0], [1.0, 1.0]])


def test_probit_averages_are_bounded_to_the_last_digit(rng):
    """Intervals of width zero, in either tail as far as it goes, against Phi in 40 digits."""
    variance = 10.0 ** rng.uniform(-8.0, 4.0, (400, 1))
    mean = rng.uniform(-38.4, 38.4, (400, 1)) * np.sqrt(1.0 + variance)
    lower, upper = averaged_intervals(PROBIT, mean, np.zeros((400, 1)), variance, variance)
    with mpmath.workdps(40):
        for i, (m, v) in enumerate(zip(mean[:, 0], variance[:, 0], strict=True)):
            z = mpmath.mpf(float(m)) / mpmath.sqrt(1 + mpmath.mpf(float(v)))
            for label, exact in ((0, mpmath.ncdf(-z)), (1, mpmath.ncdf(z))):
                assert lower[i, label] <= exact <= upper[i, label]
                assert upper[i, label] - lower[i, label] <= 3e-11 * exact + 1e-300


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_ends_of_a_mean_are_rounded_outward(sign, rng):
    """Far out a mean's last digit is as much of its average as averages may be off by themselves."""
    mean, bound = sign * rng.uniform(525.0, 690.0, (300, 1)), rng.uniform(0.0, 3.0, (300, 1))
    zeros = np.zeros((300, 1))
    lower, upper = averaged_intervals(LOGIT, mean, bound, zeros, zeros)
    label = 1 if sign < 0.0 else 0  # the unlikely one
    with mpmath.workdps(40):
        for i, (m, b) in enumerate(zip(np.abs(mean[:, 0]), bound[:, 0], strict=True)):
            nearer, further = (mpmath.exp(-abs(mpmath.mpf(float(m)) + s * mpmath.mpf(float(b)))) for s in (-1, 1))
            assert lower[i, label] <= further
            assert nearer <= upper[i, label]


@pytest.mark.parametrize("classes", [3, 8, 40])
def test_shares_of_a_sum_are_rounded_outward(classes, rng, monkeypatch):
    """Rounding errors of the division by the sum, against fractions, with exact averages."""
    r = 60
    found = rng.uniform(0.0, 1.0, (r, classes)) * 10.0 ** rng.uniform(-6.0, 0.0, (r, classes))
    monkeypatch.setattr(averages, "_average", lambda likelihood, mean, variance: (found, 1.0 - found))
    monkeypatch.setattr(averages, "_off", lambda likelihood: 0.0)
    zeros = np.zeros((r, classes))
    lower, upper = averaged_intervals(Likelihood("logit", classes), zeros, zeros, zeros, zeros)
    for i in range(r):
        parts = [Fraction(value) for value in found[i].tolist()]
        for c, part in enumerate(parts):
            exact = part / sum(parts)
            assert Fraction(lower[i, c]) <= exact <= Fraction(upper[i, c])
            assert Fraction(upper[i, c]) - Fraction(lower[i, c]) <= exact * Fraction(4 * (classes + 6), 2**52)


def test_one_against_the_rest_has_no_share_where_no_class_has_any():
    """Averages that come to zero, or to anything up to one: between nothing and all."""
    likelihood = Likelihood("logit", 3)
    mean, zeros = np.array([[-1e5, -1e5, -1e5], [0.0, 0.0, 0.0]]), np.zeros((2, 3))
    bound = np.array([[0.0] * 3, [np.inf] * 3])
    lower, upper = averaged_intervals(likelihood, mean, bound, zeros, zeros)
    assert_array_equal(lower, 0.0)
    assert_array_equal(upper, 1.0)


@pytest.mark.filterwarnings("error")
def test_means_at_a_bound_of_zero_are_moved_outward_by_one_number():
    """A function that is known exactly, at half: the averages of the numbers beside it."""
    mean = np.array([[1e6], [-1e6], [0.0]])
    zeros = np.zeros((3, 1))
    lower, upper = averaged_intervals(PROBIT, mean, zeros, zeros, np.full((3, 1), 1e12))
    exact = scipy.special.ndtr(1.0)
    assert_allclose(lower[:, 1], [exact, 0.0, 0.5], rtol=1e-9)
    assert_allclose(upper[:, 1], [1.0, 1.0 - exact, 0.5], rtol=1e-9)
    assert lower[2, 1] < 0.5 < upper[2, 1]


def test_what_is_no_interval_is_refused():
    one = np.ones((1, 1))
    with pytest.raises(InputError, match="ends before it begins"):
        averaged_intervals(LOGIT, one, one, one, 0.5 * one)
    with pytest.raises(InputError, match="below zero"):
        averaged(LOGIT, one, -one)
    with pytest.raises(InputError, match=r"shape \(1, 2\); expected \(r, 1\)"):
        averaged(LOGIT, np.ones((1, 2)), np.ones((1, 2)))
    with pytest.raises(InputError, match="no proven intervals"):
        averaged_intervals(Likelihood("softmax", 3), *(np.ones((1, 3)) for _ in range(4)))


@pytest.mark.long
@pytest.mark.covering
@pytest.mark.parametrize("likelihood", [LOGIT, PROBIT, Likelihood("logit", 3)])
@pytest.mark.parametrize("factor", [1.0, 1.05])
def test_a_variance_is_settled_where_its_part_of_an_interval_is_small(likelihood, factor, rng):
    count = 400
    mean, bound = 4.0 * rng.standard_normal(count), 10.0 ** rng.uniform(-6, -1, count)
    upper = 10.0 ** rng.uniform(-2, 2, count)
    lower = upper * (1.0 - 10.0 ** rng.uniform(-6, 0, count))
    found = settled(likelihood, mean, bound, lower, upper, factor)
    assert 0.2 < found.mean() < 0.8
    alone = Likelihood(likelihood.name, 2)
    for at in range(count):
        # Widths by the exact average at the four corners, in either order.
        def width(low, high, at=at):
            values = [
                averaged(alone, np.array([[mean[at] + side * bound[at]]]), np.array([[variance]]))[0, 1]
                for side in (-1.0, 1.0)
                for variance in (low / factor, high * factor)
            ]
            return max(values) - min(values)

        least = min(width(lower[at], lower[at]), width(upper[at], upper[at]))
        if least > 1e-9:  # beyond it averages have too few digits to tell
            added = width(lower[at], upper[at]) / least - 1.0
            if abs(added - averages.VARIANCE_SHARE) > 1e-3:
                assert found[at] == (added <= averages.VARIANCE_SHARE)


def test_nothing_is_gained_by_a_variance_whose_curvature_is_not_known():
    nothing, all_of_it = np.zeros(1), np.full(1, 50.0)
    assert settled(LOGIT, nothing, nothing, nothing, all_of_it, np.inf).all()
    assert not settled(LOGIT, nothing + 1.0, nothing, nothing, all_of_it, 1.0).any()
