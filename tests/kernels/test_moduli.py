"""Profiles over complex numbers: their bounds, where they are analytic, and their formulas in other precisions."""

from __future__ import annotations

import math
import random

import mpmath as mp
import numpy as np
import pytest

from dkgp.kernels.program import PROFILES, Profile, numpy_functions

PARAMETERS = (0.3, 2.0, 40.0)


def cases() -> list[tuple[Profile, float]]:
    """All profiles of dkgp that have a bound, each with parameters."""
    return [
        (profile, parameter)
        for profile in PROFILES.values()
        if profile.modulus is not None
        for parameter in (PARAMETERS if profile.parameters else (0.0,))
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
