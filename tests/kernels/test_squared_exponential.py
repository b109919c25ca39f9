"""The squared exponential as a value: what it admits, what it computes, how it travels."""

from __future__ import annotations

import math
import random
from dataclasses import FrozenInstanceError
from fractions import Fraction
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import jv

from dkgp.errors import InputError
from dkgp.kernels import Cubic, Spherical, SquaredExponential, TileEvaluator, Wendland, kernel_from_json, parse_kernel
from dkgp.kernels.distance import spread, squared_distances
from dkgp.kernels.program import PROFILES, Profile, numpy_functions
from dkgp.models.prediction.pathwise import draw_prior_functions
from dkgp.models.tuning.families import family_of
from dkgp.models.tuning.objectives import LogMarginalLikelihood

finite = st.floats(-10.0, 10.0)


@given(
    gamma=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=4),
    variance=st.floats(1e-3, 1e3),
    data=st.data(),
)
def test_symmetric_bounded_and_maximal_on_the_diagonal(
    gamma: list[float], variance: float, data: st.DataObject
) -> None:
    rows = st.lists(st.tuples(*[finite] * len(gamma)), min_size=1, max_size=5)
    A, B = np.array(data.draw(rows)), np.array(data.draw(rows))
    kernel = SquaredExponential(gamma=tuple(gamma), variance=variance)
    values = kernel(A, B)
    assert values.min() >= 0.0
    assert values.max() <= variance
    np.testing.assert_array_equal(values, kernel(B, A).T)
    np.testing.assert_array_equal(kernel(A, A).diagonal(), kernel.diagonal(A))
    assert np.linalg.eigvalsh(kernel(A, A)).min() >= -1e-12 * variance * len(A)


def test_value_object() -> None:
    kernel = SquaredExponential(gamma=[0.5, 0], variance=2)
    twin = SquaredExponential(gamma=np.array([0.5, 0.0]), variance=2.0)
    assert kernel == twin
    assert hash(kernel) == hash(twin)
    assert kernel != SquaredExponential(gamma=(0.5, 0.1), variance=2.0)
    assert kernel.gamma == (0.5, 0.0)
    assert (kernel.n_features, kernel.variance) == (2, 2.0)
    assert isinstance(kernel.variance, float)
    with pytest.raises(FrozenInstanceError):
        kernel.variance = 3.0  # type: ignore[misc]


def test_a_number_is_the_length_scale_of_one_feature() -> None:
    assert SquaredExponential(gamma=0.5) == SquaredExponential(gamma=(0.5,), variance=1.0)


@pytest.mark.parametrize(
    ("gamma", "variance", "message"),
    [
        ((0.5, -0.1), 1.0, r"gamma\[1\] must be finite and positive; got -0.1"),
        ((math.nan,), 1.0, r"gamma\[0\] must be finite and positive; got nan"),
        ((0.1, math.inf), 1.0, r"gamma\[1\] must be finite and positive; got inf"),
        ((0.1, None), 1.0, r"gamma\[1\] must be a number; got None"),
        (("wide",), 1.0, r"gamma\[0\] must be a number; got 'wide'"),
        ((), 1.0, "gamma needs one value for each feature; got none"),
        ((0.5,), 0.0, "variance must be finite and positive; got 0.0"),
        ((0.5,), -1.0, "variance must be finite and positive; got -1.0"),
        ((0.5,), math.nan, "variance must be finite and positive; got nan"),
        ((0.5,), math.inf, "variance must be finite and positive; got inf"),
    ],
)
def test_inadmissible_parameters_are_named(gamma, variance, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SquaredExponential(gamma=gamma, variance=variance)


def test_json_without_variance_is_the_papers_kernel() -> None:
    assert kernel_from_json({"type": "rbf", "gamma": [0.25]}) == SquaredExponential(gamma=(0.25,), variance=1.0)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"type": "matern", "gamma": [1.0]}, r"unknown kernel type 'matern'; known types: \[.*'rbf'"),
        ({"type": ["rbf"], "gamma": [1.0]}, r"unknown kernel type \['rbf'\]; known types: \[.*'rbf'"),
        ({"gamma": [1.0]}, r'needs a "type".*known types: \[.*\'rbf\''),
        ([1.0], r'needs a "type"'),
        ({"type": "rbf", "variance": 1.0}, 'needs "gamma"'),
        ({"type": "rbf", "gamma": 1.0}, '"gamma" must be a list'),
        ({"type": "rbf", "gamma": "0.5"}, '"gamma" must be a list'),
        ({"type": "rbf", "gamma": []}, "got none"),
        ({"type": "rbf", "gamma": [-1.0]}, r"gamma\[0\] must be finite and positive"),
        ({"type": "rbf", "gamma": [1.0], "variance": None}, "variance must be a number; got None"),
    ],
)
def test_bad_descriptions_say_what_was_expected(document, message: str) -> None:
    with pytest.raises(InputError, match=message):
        kernel_from_json(document)


# Squared distances by one matrix product, and by differences where that would leave few digits; their spread.


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_near_pairs_are_taken_by_differences_and_no_others(rng: np.random.Generator, offset: float) -> None:
    """A share of 1e-9 of the largest squared norms parts them."""
    A = offset + rng.normal(size=(40, 3))
    largest = 2.0 * float(np.max(np.sum(A * A, axis=1)))
    steps = np.sqrt(largest) * 10.0 ** rng.uniform(-7.0, -2.5, 40)
    B = A + steps[:, None] * np.array([1.0, 0.0, 0.0])
    found = squared_distances(A, B)
    by_product = -2.0 * (A @ B.T) + np.einsum("il,il->i", A, A)[:, None] + np.einsum("jl,jl->j", B, B)
    exact = np.array(
        [[float(sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(x, z, strict=True))) for z in B] for x in A]
    )
    near, far = exact < 0.9e-9 * largest, exact > 1.1e-9 * largest
    assert near.any()
    assert far[np.diag_indices(40)].any()
    np.testing.assert_allclose(found[near], exact[near], rtol=1e-14)
    np.testing.assert_array_equal(found[far], by_product[far])
    assert np.abs(found - exact).max() <= 1e-14 * largest
    assert (squared_distances(A, A)[np.diag_indices(40)] == 0.0).all()


def test_spread_is_the_sum_over_all_pairs(rng: np.random.Generator) -> None:
    D, left, right = rng.normal(size=(7, 5)), rng.normal(size=(7, 3)), rng.normal(size=(5, 3))
    expected = [sum(D[i, j] * (left[i, f] - right[j, f]) ** 2 for i in range(7) for j in range(5)) for f in range(3)]
    np.testing.assert_allclose(spread(D, left, right), expected, rtol=1e-12)


# Spherical, cubic and Wendland kernels: where they are covariances, their range, their spectra, and tuning.


KERNELS = [Spherical, Cubic, Wendland]
every_kernel = pytest.mark.parametrize("kind", KERNELS, ids=lambda kind: kind.type_name)


@every_kernel
@pytest.mark.parametrize("d", [1, 2, 3])
def test_matrices_have_no_negative_eigenvalue(kind: Any, d: int, rng: np.random.Generator) -> None:
    for X in (rng.random((150, d)), np.stack(np.meshgrid(*[np.linspace(0, 1, {1: 150, 2: 12, 3: 5}[d])] * d), -1)):
        for reach in (0.1, 0.6, 5.0):
            K = kind.from_length_scales((reach,) * d)(X.reshape(-1, d), X.reshape(-1, d))
            assert np.linalg.eigvalsh(K).min() > -1e-13 * len(K)


def test_the_spherical_function_is_no_covariance_in_twelve_dimensions() -> None:
    """Its Fourier transform there, an integral of k(r) r^6 J_5(w r), takes negative values."""
    transform = [
        quad(lambda r, w=w: (1.0 - 1.5 * r + 0.5 * r**3) * r**6 * jv(5, w * r), 0.0, 1.0, limit=200)[0]
        for w in np.linspace(1.0, 40.0, 80)
    ]
    assert min(transform) < -1e-4 * max(transform)


@every_kernel
def test_more_than_three_dimensions_are_refused(kind: Any) -> None:
    name = kind.type_name
    pattern = (
        rf"a {name} kernel is no covariance in 4 dimensions, only in up to 3; take matern\d2, or name up to 3 "
        rf"features, as in '{name}\[0, 1\]'"
    )
    with pytest.raises(InputError, match=pattern):
        kind((1.0, 2.0, 3.0, 4.0))
    with pytest.raises(InputError, match=pattern):
        kind((1.0,), n_features=4)
    with pytest.raises(InputError, match=pattern):
        kernel_from_json({"type": name, "variance": 1.0, "gamma": [1.0] * 4})
    with pytest.raises(InputError, match=pattern):
        parse_kernel(f"{name} + rbf", 4)
    assert kind((1.0, 0.0, 3.0, 4.0)).n_features == 4  # one of four is switched off
    assert parse_kernel(f"{name}[0, 3] + rbf", 4).n_features == 4


@every_kernel
def test_the_length_scale_is_the_range(kind: Any, precision: Any) -> None:
    kernel = kind.from_length_scales((2.0, 0.5), variance=3.0)
    assert kernel.ranges == pytest.approx((2.0, 0.5))
    X = np.array([[0.0, 0.0]])
    Z = np.array([[1.999, 0.0], [2.0, 0.0], [0.0, 0.499], [0.0, 0.5], [1.5, 0.4], [1e100, 0.0]])
    evaluator = TileEvaluator(kernel, precision)
    for values in (kernel(X, Z)[0], evaluator.tile(evaluator.prepare(X), evaluator.prepare(Z))[0]):
        assert (values[[0, 2]] > 0.0).all()
        assert (values[[1, 3, 4, 5]] == 0.0).all()
    assert kernel.compiled.support == 1.0


@every_kernel
def test_tiles_are_never_negative(kind: Any, precision: Any, rng: np.random.Generator) -> None:
    evaluator = TileEvaluator(kind.from_length_scales((1.0,)), precision)
    r = np.concatenate([1.0 - np.geomspace(1e-9, 1.0, 500), np.linspace(0.0, 1.2, 500)])[:, None]
    tile = evaluator.tile(evaluator.prepare(r), evaluator.prepare(np.zeros((1, 1))))
    assert (tile >= 0.0).all()
    assert tile.max() == 1.0


@every_kernel
@pytest.mark.parametrize("d", [1, 2, 3])
def test_frequencies_are_of_the_spectrum(kind: Any, d: int) -> None:
    kernel = kind.from_length_scales((0.7, 2.0, 1.3)[:d])
    frequencies = kernel.frequencies(60_000, np.random.default_rng(3))
    assert frequencies.shape == (60_000, d)
    X = np.random.default_rng(4).uniform(-1.0, 1.0, (40, d)) * np.array([0.8, 2.3, 1.5])[:d]
    mean = np.cos(X @ frequencies.T).mean(axis=1)
    # Of means of cosines, whose deviation is at most one: five standard deviations.
    np.testing.assert_allclose(mean, kernel(X, np.zeros((1, d)))[:, 0], atol=5.0 / math.sqrt(60_000))


@every_kernel
def test_radial_frequencies_have_their_density(kind: Any) -> None:
    kernel = kind.from_length_scales((1.0, 1.0, 1.0))
    lengths = np.linalg.norm(kernel.frequencies(40_000, np.random.default_rng(8)), axis=1)
    polynomial = np.polynomial.Polynomial(kind._polynomial)
    for below in (2.0, 5.0, 15.0, 16.5, 40.0):
        # The integral of the density (2 / pi) w I(w) up to a frequency, in closed form in w.
        share = quad(
            lambda r, b=below: 2.0 / math.pi * polynomial(r) * (math.sin(b * r) / r - b * math.cos(b * r)), 0.0, 1.0,
            limit=200,
        )[0]  # fmt: skip
        assert abs((lengths <= below).mean() - share) < 5.0 * math.sqrt(share * (1.0 - share) / 40_000) + 1e-9


def test_frequencies_of_a_switched_off_feature_are_zero() -> None:
    frequencies = Cubic((1.0, 0.0, 2.0, 0.5)).frequencies(10, np.random.default_rng(0))
    assert (frequencies[:, 1] == 0.0).all()
    assert (frequencies[:, [0, 2, 3]] != 0.0).all()


def test_prior_functions_have_the_kernels_covariance(rng: np.random.Generator) -> None:
    kernel = parse_kernel("wendland + 0.3 * spherical(length_scale=1)[0]", 2)
    functions = draw_prior_functions(kernel, 2, 2_000, np.random.default_rng(5), frequencies=512)
    X = rng.standard_normal((12, 2))
    values = functions(X)
    covariance = values @ values.T / values.shape[1]
    assert np.abs(covariance - kernel(X, X)).max() < 0.2


@every_kernel
def test_the_likelihoods_gradient_is_its_difference(kind: Any, rng: np.random.Generator) -> None:
    X = rng.standard_normal((80, 2))
    y = np.sin(2.0 * X[:, :1])
    family = family_of(kind.from_length_scales((2.0, 3.0)), X, True, ("a", "b"))
    likelihood, at = LogMarginalLikelihood(family, y), np.append(family.initial(), math.log(0.1))
    value = likelihood(at)
    assert value is not None
    for index in range(len(at)):
        step = np.zeros(len(at))
        step[index] = 1e-5
        above, below = likelihood(at + step), likelihood(at - step)
        assert above is not None
        assert below is not None
        assert value[1][index] == pytest.approx((above[0] - below[0]) / 2e-5, rel=1e-4, abs=1e-5)


# Profiles over complex numbers: their bounds, where they are analytic, and their formulas in other precisions.


PARAMETERS = {"rational_quadratic": (0.3, 2.0, 40.0), "stable": (0.3, 1.0, 1.6, 1.9)}


def cases() -> list[tuple[Profile, float]]:
    """All profiles of dkgp that have a bound, each with parameters."""
    return [
        (profile, parameter)
        for profile in PROFILES.values()
        if profile.modulus is not None
        for parameter in PARAMETERS.get(profile.name, (0.0,))
    ]


def named(value: object) -> str | None:
    return value.name if isinstance(value, Profile) else None


def formula(profile: Profile, s: mp.mpc, parameter: float) -> mp.mpc:
    assert profile.formula is not None
    return profile.formula(s, parameter, mp)


def below(number: mp.mpf) -> float:
    return float(np.nextafter(float(number), -math.inf))


def above(number: mp.mpf) -> float:
    return float(np.nextafter(float(number), math.inf))


def drawn_roots(profile: Profile, rng: random.Random, count: int) -> list[mp.mpc]:
    """Draw square roots of s: all magnitudes, with phases on the axes, next to them and anywhere; s near the branch."""
    reach = min(profile.support, 30.0)
    roots = []
    for _ in range(count):
        size = reach * 10.0 ** rng.uniform(-3.0, 0.3)
        phase = rng.choice(
            [0.0, math.pi / 2, rng.uniform(-1.0, 1.0) * math.pi / 2, math.pi / 2 - 10.0 ** rng.uniform(-9.0, 0.0)]
        )
        roots.append(mp.mpf(size) * mp.expj(phase))
    near = [
        mp.sqrt(mp.mpc(profile.branch + 10.0 ** rng.uniform(-12, 0), 10.0 ** rng.uniform(-12, 0))) for _ in range(50)
    ]
    return roots + (near if math.isfinite(profile.branch) else [])


def test_every_falling_profile_has_a_bound() -> None:
    missing = [profile.name for profile in PROFILES.values() if profile.value is not None and profile.modulus is None]
    assert [name for name in missing if not name.startswith(("wendland", "tests"))] == []


@pytest.mark.spread(4)
@pytest.mark.parametrize(("profile", "parameter"), cases(), ids=named)
def test_no_complex_number_breaks_the_bound(profile: Profile, parameter: float) -> None:
    assert profile.modulus is not None
    rng, closest = random.Random(5), 0.0
    with mp.workdps(40):
        for root in drawn_roots(profile, rng, 700):
            s = root * root
            value = abs(formula(profile, s, parameter))
            # Each of the three conditions is tight, or is met with room to spare.
            re_s = below(mp.re(s)) - rng.choice([0.0, 10.0 ** rng.uniform(-6, 2)])
            re_root = below(mp.re(root)) - rng.choice([0.0, 10.0 ** rng.uniform(-6, 1)])
            size = above(abs(root)) + rng.choice([0.0, 10.0 ** rng.uniform(-6, 1)])
            bound = float(profile.modulus(re_s, re_root, size, parameter))
            assert value <= bound
            if math.isfinite(bound):
                closest = max(closest, float(value / bound))
    assert closest > 0.5  # a bound that is close somewhere


@pytest.mark.parametrize(("profile", "parameter"), cases(), ids=named)
def test_bounds_of_arrays_are_those_of_numbers_and_finite_far_out(profile: Profile, parameter: float) -> None:
    assert profile.modulus is not None
    re_s, re_root, size = np.array([0.5, -0.25, 900.0]), np.array([0.0, 1.0, 2.0]), np.array([1.0, 4.0, 1e4])
    bounds = profile.modulus(re_s, re_root, size, parameter)
    assert bounds.shape == (3,)
    for bound, *conditions in zip(bounds, re_s, re_root, size, strict=True):
        assert bound == profile.modulus(*conditions, parameter) > 0.0
    with np.errstate(all="raise"):
        far = profile.modulus(np.array([1e9, -1e9]), np.array([3e4, 0.0]), np.array([1e5, 1e5]), parameter)
    assert not np.isnan(far).any()
    assert (far > 0.0).all()


@pytest.mark.spread(5)
@pytest.mark.parametrize(("profile", "parameter"), cases(), ids=named)
def test_formulas_are_analytic_but_up_to_the_branch(profile: Profile, parameter: float) -> None:
    def of_circle(centre: complex, radius: float) -> float:
        """Difference between the value at a centre and the mean over its circle, in its sizes: zero if analytic."""
        count = 256 if parameter > 10.0 else 64  # a high power of a pole takes more
        points = [mp.mpc(centre) + radius * mp.expj(2 * mp.pi * (k + 0.5) / count) for k in range(count)]
        values = [formula(profile, point, parameter) for point in points]
        return float(abs(sum(values) / count - formula(profile, mp.mpc(centre), parameter)) / max(map(abs, values)))

    with mp.workdps(30):
        start = profile.branch if math.isfinite(profile.branch) else -3.0
        for centre, distance in ((start + 1.0, 1.0), (start + 2j, 2.0), (start - 1.0 + 0.7j, 0.7), (start + 0.2, 0.2)):
            assert of_circle(centre, 0.5 * distance) < 1e-13
        if math.isfinite(profile.branch):
            assert of_circle(start + 0.3, 0.5) > 1e-8


@pytest.mark.parametrize(("profile", "parameter"), cases(), ids=named)
def test_formulas_have_the_digits_of_their_numbers(profile: Profile, parameter: float) -> None:
    assert profile.formula is not None
    assert profile.value is not None
    s = np.concatenate([[0.0], np.geomspace(1e-6, min(profile.support, 6.0) ** 2, 60)])
    for dtype in (np.float64, np.longdouble):
        values = profile.formula(s.astype(dtype), parameter, numpy_functions(dtype))
        assert values.dtype == dtype
        with mp.workdps(40):
            exact = [formula(profile, mp.mpf(float(x)), parameter) for x in s]
            off = max(abs(mp.mpf(str(value)) - each) for value, each in zip(values, exact, strict=True))
        assert off <= 40.0 * max(parameter, 1.0) * np.finfo(dtype).eps
    plain = [profile.value(float(x), parameter) for x in s]
    np.testing.assert_allclose(values.astype(np.float64), plain, rtol=1e-13, atol=1e-15)
    complex_values = profile.formula(s.astype(np.complex128) + 0.25j, parameter, numpy_functions(np.float64))
    assert complex_values.dtype == np.complex128


@pytest.mark.spread(5)
@pytest.mark.parametrize(("profile", "parameter"), cases(), ids=named)
def test_mixtures_of_exponentials_fall_no_slower_off_the_real_line(profile: Profile, parameter: float) -> None:
    """|f(s)| <= f(Re s) and |1 - f(s)| <= 3.17 (1 - f(|s|)) for the declared mixtures; others break the first."""
    rng = random.Random(11)
    broken = 0
    with mp.workdps(30):
        for root in drawn_roots(profile, rng, 150):
            s = root * root
            if s.real <= 0:
                continue
            at_real = formula(profile, s.real, parameter) if s.real < profile.support**2 else mp.mpf(0)
            value = formula(profile, s, parameter)
            broken += abs(value) > at_real * (1 + mp.mpf(10) ** -25)
            if profile.mixture:
                assert abs(1 - value) <= mp.mpf("3.17") * (1 - formula(profile, abs(s), parameter)) + mp.mpf(10) ** -25
    assert (broken == 0) == profile.mixture
