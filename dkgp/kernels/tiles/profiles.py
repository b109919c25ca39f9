"""Profiles one value at a time in float64, and how fast they fall: what bounds on their errors are made of.

Each is a decreasing function of s = r^2, the scaled squared distance (see `dkgp.kernels.program.Profile`).
"""

from __future__ import annotations

import math

import numpy as np

from dkgp.kernels.program import Profile
from dkgp.kernels.tiles.code_cache import cached_njit

__all__ = [
    "PROFILE_ROUNDING",
    "greatest_relative_slope",
    "greatest_slope",
    "profile_rounding",
    "profile_value",
    "slope_at_zero",
    "steepest_slopes",
]

_LN2 = math.log(2.0)
_EXP2, _MATERN12, _MATERN32, _MATERN52, _RATIONAL_QUADRATIC = (int(Profile(number)) for number in range(5))
_GOLDEN = (1.0 + math.sqrt(5.0)) / 2.0
# Roundings of a value near one, by what a profile does to s beyond taking it from the distance stage: four of the
# polynomial for 2**f, the square root's or the logarithm's as far as they change the exponential, and the factors.
# Of a polynomial: each power, and the degree's share of a dot product is added with the inputs. A user's function is
# taken to be good to sixteen, and to change no faster than in proportion.
PROFILE_ROUNDING = (4.0, 5.0, 9.0, 11.0, 8.0, 2.0, 16.0, 16.0)


@cached_njit(nogil=True)
def profile_value(squared_distance, profile, parameter):  # type: ignore[no-untyped-def]
    """Kernel value of unit amplitude at one squared distance of scaled inputs; NaN for a profile that need not fall."""
    if profile == _EXP2:
        return 2.0 ** (-squared_distance)
    v = _LN2 * np.sqrt(squared_distance)
    if profile == _MATERN12:
        return np.exp(-v)
    if profile == _MATERN32:
        return (1.0 + v) * np.exp(-v)
    if profile == _MATERN52:
        return (1.0 + v + v * v / 3.0) * np.exp(-v)
    if profile == _RATIONAL_QUADRATIC:
        return np.exp(-parameter * np.log1p(squared_distance))
    return np.nan


@cached_njit(nogil=True)
def profile_rounding(profile):  # type: ignore[no-untyped-def]
    """Roundings that a tile's profile adds to a value near one."""
    return PROFILE_ROUNDING[profile]


@cached_njit(nogil=True)
def steepest_slopes(distance, profile, parameter):  # type: ignore[no-untyped-def]
    """The greatest |dk/dr|, and the greatest |dk/d log s|, anywhere beyond a distance r.

    Both rise to a peak and fall, so each is taken at its peak or, past it, where the range begins.
    """
    v = _LN2 * distance
    if profile == _EXP2:
        steepest = max(distance, math.sqrt(0.5 / _LN2))
        bulge = max(distance * distance, 1.0 / _LN2)
        return 2.0 * _LN2 * steepest * 2.0 ** (-steepest * steepest), _LN2 * bulge * 2.0 ** (-bulge)
    if profile == _MATERN12:
        bulge = max(v, 1.0)
        return _LN2 * np.exp(-v), 0.5 * bulge * np.exp(-bulge)
    if profile == _MATERN32:
        steepest, bulge = max(v, 1.0), max(v, 2.0)
        return _LN2 * steepest * np.exp(-steepest), 0.5 * bulge * bulge * np.exp(-bulge)
    if profile == _MATERN52:
        steepest, bulge = max(v, _GOLDEN), max(v, 1.0 + math.sqrt(3.0))
        return (
            _LN2 / 3.0 * steepest * (1.0 + steepest) * np.exp(-steepest),
            bulge * bulge / 6.0 * (1.0 + bulge) * np.exp(-bulge),
        )
    if profile == _RATIONAL_QUADRATIC:
        steepest = max(distance, 1.0 / np.sqrt(2.0 * parameter + 1.0))
        bulge = max(distance * distance, 1.0 / parameter)
        return (
            2.0 * parameter * steepest * np.exp(-(parameter + 1.0) * np.log1p(steepest * steepest)),
            parameter * bulge * np.exp(-(parameter + 1.0) * np.log1p(bulge)),
        )
    return np.inf, np.inf


def greatest_relative_slope(profile: int, parameter: float) -> float:
    """The greatest |dk/d log s|: what a relative error of the squared distance does to an entry at worst."""
    if profile == Profile.POLYNOMIAL:
        return parameter
    if profile > Profile.POLYNOMIAL:
        return 1.0
    return float(steepest_slopes.py_func(0.0, profile, parameter)[1])


def greatest_slope(profile: int, parameter: float) -> float:
    """The greatest |dk/dr|: what an error of the distance does to an entry at worst.

    Zero for what is no function of a distance. A user's function of s is taken to be no steeper than one in r.
    """
    if profile > Profile.RATIONAL_QUADRATIC:
        return 1.0 if profile == Profile.USER else 0.0
    return float(steepest_slopes.py_func(0.0, profile, parameter)[0])


def slope_at_zero(profile: int, parameter: float) -> float:
    """|dk/ds| where s is zero, and nowhere more: what an absolute error of the squared distance does to an entry."""
    if profile > Profile.RATIONAL_QUADRATIC:
        return math.inf
    return {_EXP2: _LN2, _MATERN32: _LN2**2 / 2.0, _MATERN52: _LN2**2 / 6.0, _RATIONAL_QUADRATIC: parameter}.get(
        profile, math.inf
    )
