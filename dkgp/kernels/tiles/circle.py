"""Points on a circle whose bits are the same on every processor: cosine and sine of a number of turns.

NumPy's own sine and cosine are other code on a processor with wider vectors, and differ there in the last bit, as those
of two C libraries do. Here both are short polynomials, evaluated by NumPy's products and sums, one operation at a time:
each is rounded once, as IEEE 754 has it, whatever the vectors' width. It is called once for each input, not for each
pair, so its speed does not matter.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["cosine_and_sine"]

FloatArray: TypeAlias = NDArray[np.float64]

# sin(2 pi r) = r (T - r^2 (T^3 / 3! - ...)) and cos(2 pi r) = 1 - r^2 (T^2 / 2! - ...) for T = 2 pi and |r| <= 1/8, the
# first term left out is below 2^-58 of the value. Fractions round once, and need no library's powers.
_T = Fraction("6.28318530717958647692528676655900576839433879875021")
_TURN = float(_T)
_TURN_REST = float(_T - Fraction(_TURN))  # half a rounding, if it were left out
_SINE = tuple(float((-1) ** k * _T ** (2 * k + 1) / math.factorial(2 * k + 1)) for k in range(1, 10))
_COSINE = tuple(float((-1) ** k * _T ** (2 * k) / math.factorial(2 * k)) for k in range(1, 10))


def cosine_and_sine(turns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """cos(2 pi t) and sin(2 pi t), each within two units in the last place.

    Parameters
    ----------
    turns : (n,) float64
        Angles in turns, as they are: whole turns are taken off exactly.

    Returns
    -------
    (n,) and (n,) float64
    """
    with np.errstate(invalid="ignore"):  # an angle that is not finite has no place on the circle: NaN
        within = turns - np.rint(turns)
        quarters = np.rint(4.0 * within)
        rest = within - 0.25 * quarters  # all exact so far
    square = rest * rest
    sine = rest * _TURN + rest * (_TURN_REST + square * _polynomial(_SINE, square))
    cosine = 1.0 + square * _polynomial(_COSINE, square)
    # A quarter turn on: (c, s) -> (-s, c).
    odd, half = np.abs(quarters) == 1.0, np.abs(quarters) == 2.0
    turned_cosine = np.where(odd, -quarters * sine, np.where(half, -cosine, cosine))
    turned_sine = np.where(odd, quarters * cosine, np.where(half, -sine, sine))
    return turned_cosine, turned_sine


def _polynomial(coefficients: tuple[float, ...], x: FloatArray) -> FloatArray:
    """Horner's scheme: `c0 + c1 x + c2 x^2 + ...`."""
    value = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + coefficient
    return value
