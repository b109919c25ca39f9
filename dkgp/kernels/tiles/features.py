"""Rows of a data set as the tile loops read them: scaled, on circles where they are periodic, padded to whole vectors.

Cosines and sines have the same bits on every processor. NumPy's own depend on the instructions that the processor has,
and on the platform. These are a few products and sums of NumPy arrays, one operation at a time: each is rounded once,
as IEEE 754 has it, for any width of the vectors. They are taken once for each input, not for each pair, so that their
speed does not matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.kernels.program import InputGroup
from dkgp.kernels.tiles.blocks import LANES
from dkgp.kernels.tiles.loops import gather_columns

# sin(2 pi r) = r (T - r^2 (T^3 / 3! - ...)) and cos(2 pi r) = 1 - r^2 (T^2 / 2! - ...) for T = 2 pi and |r| <= 1/8, the
# first term left out is below 2^-58 of the value. Fractions round once, and need no library's powers.
_T = Fraction("6.28318530717958647692528676655900576839433879875021")
_TURN = float(_T)
_TURN_REST = float(_T - Fraction(_TURN))  # half a rounding, if it were left out
_SINE = tuple(float((-1) ** k * _T ** (2 * k + 1) / math.factorial(2 * k + 1)) for k in range(1, 10))
_COSINE = tuple(float((-1) ** k * _T ** (2 * k) / math.factorial(2 * k)) for k in range(1, 10))


@dataclass(frozen=True)
class Features:
    """Rows of a data set as the tile loops want them: scaled, feature-major, padded to whole vectors.

    Attributes
    ----------
    values : (inputs, n_padded) float32 or float64
        Scaled features, those of all the kernel's groups one below the other, two rows for a periodic one; the padding
        repeats the last sample.
    squared_norms : (groups, n_padded) same type
        Of each group whose kernel is a function of the distance.
    n : int
        Number of real rows.
    """

    values: NDArray[Any]
    squared_norms: NDArray[Any]
    n: int

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.values.nbytes + self.squared_norms.nbytes

    @property
    def arrays(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Values and norms in the one layout that loops are compiled for; copies of slices and of read-only arrays.

        The loops pack every row anyway, so that a copy costs little beside the entries, and another layout seconds.
        """
        return _in_layout(self.values), _in_layout(self.squared_norms)

    def take(self, indices: NDArray[np.intp]) -> Features:
        """Return the chosen rows, in the order given."""
        width = padded_count(len(indices))
        values = np.empty((self.values.shape[0], width), self.values.dtype)
        norms = np.empty((self.squared_norms.shape[0], width), self.values.dtype)
        if len(indices):
            gather_columns(self.values, indices, values)
            gather_columns(self.squared_norms, indices, norms)
        return Features(values, norms, len(indices))

    def slice(self, start: int, stop: int) -> Features:
        """Return rows start:stop; a view where `start` and `stop` fall on whole vectors, a copy elsewhere."""
        if start % LANES == 0 and (stop % LANES == 0 or stop == self.n):
            end = start + padded_count(stop - start)
            return Features(self.values[:, start:end], self.squared_norms[:, start:end], stop - start)
        return self.take(np.arange(start, stop, dtype=np.intp))

    def first(self, n: int) -> Features:
        """Return the first n rows; the arrays stay as they are, and the rows after them are padding."""
        return Features(self.values, self.squared_norms, n)

    def put(self, start: int, rows: Features) -> None:
        """Write rows over those from `start` on."""
        stop = start + rows.n
        self.values[:, start:stop] = rows.values[:, : rows.n]
        self.squared_norms[:, start:stop] = rows.squared_norms[:, : rows.n]


def _in_layout(array: NDArray[Any]) -> NDArray[Any]:
    flags = array.flags
    return array if flags.c_contiguous and flags.writeable else np.require(array, None, ["C", "W"])


def write_scaled(part: InputGroup, rows: NDArray[np.float64], values: NDArray[Any], place: int) -> int:
    """Write a group's scaled inputs from row `place` on; return the row after them.

    Inputs that overflow are infinitely far from all others, or NaN; their `row_errors` are infinite, and sums refused.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        for number, (feature, scale) in enumerate(zip(part.features, part.scale, strict=True)):
            coordinates: tuple[NDArray[np.float64], ...] = (rows[:, feature],)
            if part.periods is not None:
                coordinates = cosine_and_sine(rows[:, feature] / part.periods[number])
            for coordinate in coordinates:
                np.multiply(coordinate, scale, out=values[place, : len(rows)], casting="same_kind")
                place += 1
    return place


def padded_count(n: int) -> int:
    """Rows, rounded up to whole vectors."""
    return -(-n // LANES) * LANES


def cosine_and_sine(turns: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """cos(2 pi t) and sin(2 pi t) of angles in turns (n,), each within two units in the last place.

    Whole turns are taken off exactly.
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


def _polynomial(coefficients: tuple[float, ...], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Horner's scheme: `c0 + c1 x + c2 x^2 + ...`."""
    value = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + coefficient
    return value
