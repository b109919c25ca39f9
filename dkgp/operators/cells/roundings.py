"""Roundings of a product by cells, counted (Lemma 8 of `docs/proofs.md`), and the extended numbers that the proof uses.

The errors of moments are relative to the sum of the magnitudes of a cell's weights; all later ones are relative to the
moments as they are. Each is followed from the level where it arises to the value at a target: a table of errors, one
for each order, which `Expansion.row_weights` weighs by the magnitudes of the expansion's coefficients. Low orders carry
most of an expansion and have few roundings.

An `Extended` array has twice float64's digits: an unevaluated sum of two float64 arrays. Its operations are the
double-word ones whose errors Joldes, Muller and Popescu bound ("Tight and rigorous error bounds for basic building
blocks of double-word arithmetic", ACM Transactions on Mathematical Software 44, 2017): at most 15 * 2**-106 of the
result, for sums, products, quotients and square roots. They take float64 sums, products, quotients and roots alone, so
no bit depends on a library or a processor.

`sliced_product` is a matrix product exact to 69 bits, with the same bits on every machine. It cuts both factors into
integers of 23 bits, so that float64 matrix products of the slices are exact in any order of their sums (Ozaki, Ogita,
Oishi and Rump, "Error-free transformations of matrix multiplication", Numerical Algorithms 59, 2012): BLAS may compute
them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.kernels.program import Functions, Profile
from dkgp.kernels.tiles.encoding import SCALE_ROUNDINGS

FloatArray = NDArray[np.float64]

# Elementary functions are within this of themselves; of the exponential, for arguments down to -700.
FUNCTION_ERROR = 2.0**-78
# Values of the exponential below this are zero: their low parts would not be normal numbers.
LOWEST_EXPONENT = -600.0
_STEPS = 64  # of the table of powers of two
_SPLITTER = 2.0**27 + 1.0
_FIXED = 220  # bits after the point of the tables' integers

SLICE_BITS = 23
SLICES = 3
# Longest sum whose products of slices stay exact.
LONGEST_SUM = 64
# Error of an entry of a product, relative to the sum's length times the scales of its row and its column: products of
# slices that are left out have 2**-70 twice (the part of one factor beyond its three slices, times the other) and
# 2**-71 twice (the second slice of one times the third of the other), and those beyond are below 2**-90.
SLICED_ERROR = 2.0**-68


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the rounded sum and its rounding error (Knuth)."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def _quick_two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the rounded sum and its rounding error, where |a| >= |b| (Dekker)."""
    total = a + b
    return total, b - (total - a)


def _two_product(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the rounded product and its rounding error (Dekker and Veltkamp), of numbers below 2**990."""
    product = a * b
    a_high = a * _SPLITTER
    a_high = a_high - (a_high - a)
    a_low = a - a_high
    b_high = b * _SPLITTER
    b_high = b_high - (b_high - b)
    b_low = b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


class Extended:
    """An array of numbers with 106 bits, the sum of `high` and a smaller `low`."""

    # Arrays of NumPy leave operations with these to the methods below.
    __array_ufunc__ = None
    __slots__ = ("high", "low")

    def __init__(self, high: ArrayLike, low: ArrayLike = 0.0) -> None:
        self.high: FloatArray = np.asarray(high, np.float64)
        self.low: FloatArray = np.broadcast_to(np.asarray(low, np.float64), self.high.shape)

    @classmethod
    def of(cls, value: Extended | ArrayLike) -> Extended:
        """Return a number or an array of float64 as an `Extended` one."""
        return value if isinstance(value, Extended) else cls(value)

    @classmethod
    def from_fractions(cls, values: list[Fraction]) -> Extended:
        """Round fractions to two float64 numbers each."""
        high = [float(value) for value in values]
        low = [float(value - Fraction(part)) for value, part in zip(values, high, strict=True)]
        return cls(np.array(high), np.array(low))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.high.shape

    def reshape(self, *shape: int) -> Extended:
        """Return the numbers in another shape."""
        return Extended(self.high.reshape(*shape), np.ascontiguousarray(self.low).reshape(*shape))

    def moveaxis(self, source: int, destination: int) -> Extended:
        """Return the numbers with one axis moved."""
        return Extended(np.moveaxis(self.high, source, destination), np.moveaxis(self.low, source, destination))

    def __getitem__(self, index: Any) -> Extended:
        return Extended(self.high[index], self.low[index])

    def times_power(self, factor: FloatArray | float) -> Extended:
        """Multiply by powers of two, which is exact."""
        return Extended(self.high * factor, self.low * factor)

    def __neg__(self) -> Extended:
        return Extended(-self.high, -self.low)

    def __add__(self, other: Extended | ArrayLike) -> Extended:
        b = Extended.of(other)
        total, error = _two_sum(self.high, b.high)
        lower, rest = _two_sum(self.low, b.low)
        total, error = _quick_two_sum(total, error + lower)
        return Extended(*_quick_two_sum(total, rest + error))

    __radd__ = __add__

    def __sub__(self, other: Extended | ArrayLike) -> Extended:
        return self + (-Extended.of(other))

    def __rsub__(self, other: Extended | ArrayLike) -> Extended:
        return Extended.of(other) + (-self)

    def __mul__(self, other: Extended | ArrayLike) -> Extended:
        b = Extended.of(other)
        product, error = _two_product(self.high, b.high)
        return Extended(*_quick_two_sum(product, error + (self.high * b.low + self.low * b.high)))

    __rmul__ = __mul__

    def __truediv__(self, other: Extended | ArrayLike) -> Extended:
        b = Extended.of(other)
        quotient = self.high / b.high
        remainder = self - b * quotient
        return Extended(*_quick_two_sum(quotient, remainder.high / b.high))

    def __rtruediv__(self, other: Extended | ArrayLike) -> Extended:
        return Extended.of(other) / self

    def __pow__(self, power: int) -> Extended:
        result = self
        for _ in range(power - 1):
            result = result * self
        return result if power > 0 else Extended(np.ones_like(self.high))


def _sqrt(x: Any) -> Extended:
    """Square root of numbers that are not negative."""
    a = Extended.of(x)
    root = np.sqrt(a.high)
    safe = np.where(root > 0.0, root, 1.0)
    product, error = _two_product(root, root)
    rest = ((a.high - product) - error) + a.low
    return Extended(*_quick_two_sum(root, np.where(root > 0.0, rest / (2.0 * safe), 0.0)))


def _exp(x: Any) -> Extended:
    """Return e**x for x between -700 and 700, and zero below."""
    a = Extended.of(x)
    tables = _tables()
    steps = np.rint(a.high * (_STEPS / math.log(2.0)))
    steps = np.clip(steps, -1000.0 * _STEPS, 1000.0 * _STEPS)
    remainder = a - tables.step * steps
    r = remainder.high
    # From the fourth power on float64 has digits enough: the remainder is below 0.0055.
    tail = r * (1.0 / 24 + r * (1.0 / 120 + r * (1.0 / 720 + r * (1.0 / 5040 + r * (1.0 / 40320)))))
    series = (tables.sixth + tail) * remainder + 0.5
    series = (series * remainder + 1.0) * remainder + 1.0
    place = (steps % _STEPS).astype(np.int64)
    whole = ((steps - place) / _STEPS).astype(np.int64)
    value = series * tables.powers[place]
    gone = whole < LOWEST_EXPONENT
    whole = np.where(gone, 0, whole)
    return Extended(np.where(gone, 0.0, np.ldexp(value.high, whole)), np.where(gone, 0.0, np.ldexp(value.low, whole)))


def _log1p(x: Any) -> Extended:
    """Return log(1 + x), to an absolute error, for x from 0 on."""
    a = Extended.of(x) + 1.0
    mantissa, exponent = np.frexp(a.high)
    low = mantissa < math.sqrt(0.5)
    power = (exponent - low).astype(np.int64)
    m = Extended(np.ldexp(a.high, -power), np.ldexp(a.low, -power))
    ratio = (m - 1.0) / (m + 1.0)
    z = ratio * ratio
    # 2 artanh(ratio); the ratio is below 0.172, and from z**7 on float64 has digits enough.
    tail = np.zeros_like(z.high)
    for n in range(22, 6, -1):
        tail = z.high * tail + 1.0 / (2 * n + 1)
    series = Extended(tail)
    for n in range(6, -1, -1):
        series = series * z + _tables().odd[n]
    shift: Extended = extended_functions().ln2 * power.astype(np.float64)
    return ratio * series * 2.0 + shift


@dataclass(frozen=True)
class _Tables:
    step: Extended  # ln 2 / _STEPS
    sixth: Extended
    powers: Extended  # 2**(i / _STEPS)
    odd: list[Extended]  # 1 / (2 n + 1)


@lru_cache(maxsize=1)
def _tables() -> _Tables:
    root = 2 << (2 * _FIXED)
    for _ in range(int(math.log2(_STEPS))):
        root = math.isqrt(root) << _FIXED
    root >>= _FIXED
    powers, value = [], 1 << _FIXED
    for _ in range(_STEPS):
        powers.append(Fraction(value, 1 << _FIXED))
        value = value * root >> _FIXED
    return _Tables(
        step=Extended.from_fractions([_ln2() / _STEPS])[0],
        sixth=Extended.from_fractions([Fraction(1, 6)])[0],
        powers=Extended.from_fractions(powers),
        odd=[Extended.from_fractions([Fraction(1, 2 * n + 1)])[0] for n in range(8)],
    )


@lru_cache(maxsize=1)
def _ln2() -> Fraction:
    """Return ln 2 = 2 artanh(1 / 3), by its series."""
    return sum((Fraction(2, (2 * n + 1) * 3 ** (2 * n + 1)) for n in range(80)), Fraction(0))


@lru_cache(maxsize=1)
def extended_functions() -> Functions:
    """Return the functions that `Profile.formula` takes for `Extended` numbers."""
    ln2 = Extended.from_fractions([_ln2()])[0]
    return cast(Functions, SimpleNamespace(sqrt=_sqrt, exp=_exp, log1p=_log1p, ln2=ln2))


@lru_cache(maxsize=32)
def cosines(count: int) -> Extended:
    """Return cos(j pi / (2 count)) for j = 0 .. 4 count - 1, symmetric to the bit."""
    one = 1 << _FIXED
    pi = 4 * (4 * _arctan(5) - _arctan(239))
    quarter = []
    for j in range(count + 1):
        angle = pi * j // (2 * count)
        term = total = one
        for k in range(1, 60):
            term = -(term * angle >> _FIXED) * angle >> _FIXED
            term //= (2 * k - 1) * (2 * k)
            total += term
        quarter.append(Fraction(total, one) if j < count else Fraction(0))
    half = quarter + [-value for value in quarter[count - 1 :: -1]]
    return Extended.from_fractions(half + half[2 * count - 1 : 0 : -1])


def _arctan(inverse: int) -> int:
    """Return arctan(1 / inverse) as an integer of fixed point."""
    power = total = (1 << _FIXED) // inverse
    for k in range(1, 120):
        power = -power // (inverse * inverse)
        total += power // (2 * k + 1)
    return total


@dataclass(frozen=True)
class Sliced:
    """A matrix (r, k) as integers of 23 bits: row i is scale[i] * sum_s slices[s][i] * 2**(-23 (s + 1))."""

    slices: list[FloatArray]
    scale: FloatArray


def sliced(x: Extended) -> Sliced:
    """Cut the rows of a matrix (r, k) into slices."""
    largest = np.abs(x.high).max(axis=1)
    mantissa, exponent = np.frexp(largest)
    scale = np.where(largest > 0.0, np.ldexp(1.0, exponent - (mantissa == 0.5)), 1.0)
    rest = x.times_power((2.0**SLICE_BITS / scale)[:, None])
    high, low = rest.high, rest.low
    slices = []
    for _ in range(SLICES):
        whole = np.rint(high)
        slices.append(whole)
        # The difference is exact; a low part that carries is below the next slice's unit.
        high, low = _two_sum(high - whole, low)
        high, low = high * 2.0**SLICE_BITS, low * 2.0**SLICE_BITS
    return Sliced(slices, scale)


def _exact_parts(a: Sliced, b: Sliced) -> list[FloatArray]:
    """The exact sums of products of slices, smallest first; scales apart."""
    assert a.slices[0].shape[1] <= LONGEST_SUM
    parts = []
    for order in range(SLICES - 1, -1, -1):
        part = a.slices[0] @ b.slices[order].T
        for s in range(1, order + 1):
            part += a.slices[s] @ b.slices[order - s].T
        part *= 2.0 ** (-SLICE_BITS * (order + 2))
        parts.append(part)
    return parts


def sliced_product(a: Sliced, b: Sliced) -> Extended:
    """Return A B' of matrices (r, k) and (c, k), k at most `LONGEST_SUM`: (r, c), each entry off by `SLICED_ERROR`."""
    low, middle, high = _exact_parts(a, b)
    total = Extended(*_two_sum(middle, low))
    return (total + high).times_power(a.scale[:, None]).times_power(b.scale[None])


def rounded_product(a: Sliced, b: Sliced) -> FloatArray:
    """Return the same in float64, with two roundings more."""
    low, middle, high = _exact_parts(a, b)
    low += middle
    low += high
    low *= a.scale[:, None]
    low *= b.scale[None]
    return low


UNIT = 2.0**-53
# Factor on terms in u, for their second order and the evaluation of bounds; see `docs/proofs.md`.
EVALUATION = 1.01
# Highest order of any moment, and the levels whose tables are enumerated; deeper ones have a bound.
HIGHEST = 32
_ENUMERATED = 7


def half_table(width: int) -> FloatArray:
    """Return B (2, width, width): T_k((t + s) / 2) = sum_j B[s, k, j] T_j(t) for s = -1, +1; exact up to order 26."""
    return np.ascontiguousarray(_half_table()[:, :width, :width])


@lru_cache(maxsize=1)
def _half_table() -> FloatArray:
    table = np.zeros((2, HIGHEST, HIGHEST + 1))
    for rows, s in zip(table, (-1.0, 1.0), strict=True):
        rows[0, 0] = 1.0
        for k in range(1, HIGHEST):
            # 2 x T = (t + s) T, and t T_j = (T_(j+1) + T_|j-1|) / 2.
            last = rows[k - 1]
            rows[k] = s * last
            rows[k, 1:] += 0.5 * last[:-1]
            rows[k, :-1] += 0.5 * last[1:]
            rows[k, 1] += 0.5 * last[0]
            if k == 1:
                rows[k] *= 0.5
            else:
                rows[k] -= rows[k - 2]
    return table[:, :, :HIGHEST]


@dataclass(frozen=True)
class _Level:
    """Largest sums over j of |B_kj|, weighted, for T_k on a cell some levels below: (HIGHEST,) each.

    Those of slopes are relative to the coordinate of the cell that T_k belongs to.
    """

    sizes: FloatArray  # |B_kj|
    halves: FloatArray  # |B_kj| times the sum of |B| of one level more
    chains: FloatArray  # the same times j + 2, the roundings of a sum of j + 1 terms
    points: FloatArray  # |B_kj| times the error of T_j at a point
    slopes: FloatArray  # |B_kj| times the greatest slope of T_j, j^2
    slope_halves: FloatArray  # |B_kj| times the sum of |B| times squares, of one level more
    slope_points: FloatArray  # |B_kj| times the error of the slope of T_j at a point


def polynomial_errors() -> FloatArray:
    """Errors of T_k(t) by its recurrence in fused multiply-adds, in units of u: k (k - 1) / 2."""
    k = np.arange(HIGHEST, dtype=np.float64)
    return 0.5 * k * (k - 1.0)


def polynomial_slope_errors() -> FloatArray:
    """Errors of T_k'(t) = k U_(k-1)(t) by the recurrence of U, in units of u."""
    errors = [k * (3.0 * sum((k - j) * (j + 1) for j in range(1, k)) + k) for k in range(HIGHEST)]
    return np.array(errors, np.float64)


@lru_cache(maxsize=1)
def _weights() -> list[FloatArray]:
    """Weights of |B_kj| in the tables of `_Level`."""
    sizes = np.abs(_half_table())
    halves = sizes.sum(axis=2).max(axis=0)
    squares = np.arange(HIGHEST, dtype=np.float64) ** 2
    return [
        np.ones(HIGHEST),
        halves,
        halves * (np.arange(HIGHEST) + 2.0),
        polynomial_errors(),
        squares,
        2.0 * (sizes * squares).sum(axis=2).max(axis=0),
        polynomial_slope_errors(),
    ]


@lru_cache(maxsize=64)
def _level(depth: int) -> _Level:
    """Tables of cells `depth` levels below."""
    if depth <= _ENUMERATED:
        sizes = np.abs(_composed(depth))
        rows = []
        for weight in _weights():
            parts = sizes[:, :, 0] * weight[0]
            for j in range(1, HIGHEST):
                parts += sizes[:, :, j] * weight[j]
            rows.append(parts.max(axis=0))
    else:
        # T_k(c + h t) has the Taylor terms T_k^(m)(c) h^m t^m / m!, whose derivatives are greatest at c = 1; t^m is a
        # mean of T_j, j <= m.
        terms = np.zeros((HIGHEST, HIGHEST))
        k = np.arange(HIGHEST, dtype=np.float64)
        terms[0] = 1.0
        for m in range(1, HIGHEST):
            terms[m] = terms[m - 1] * np.maximum(k * k - (m - 1.0) ** 2, 0.0) / ((2 * m - 1) * m) * 2.0**-depth
        rows = []
        for weight in _weights():
            total = np.zeros(HIGHEST, np.float64)
            for m, most in enumerate(np.maximum.accumulate(weight)):
                total += terms[m] * most
            rows.append(total)
    scale = [1.0] * 4 + [2.0**depth] * 3
    return _Level(*(row * factor * (1.0 + 1e-9) for row, factor in zip(rows, scale, strict=True)))


@lru_cache(maxsize=16)
def _composed(depth: int) -> FloatArray:
    """T_k on all cells `depth` levels below: (2**depth, HIGHEST, HIGHEST)."""
    if depth == 0:
        return np.eye(HIGHEST)[None]
    above, halves = _composed(depth - 1), _half_table()
    out = np.zeros((len(above), 2, HIGHEST, HIGHEST))
    for j in range(HIGHEST):
        out[:, :, :, : j + 1] += above[:, None, :, j, None] * halves[None, :, None, j, : j + 1]
    return out.reshape(-1, HIGHEST, HIGHEST)


def _product(rows: list[FloatArray]) -> FloatArray:
    out = rows[0]
    for row in rows[1:]:
        out = np.multiply.outer(out, row)
    return out


def _one_of_each(one: FloatArray, others: FloatArray, d: int) -> FloatArray:
    """Sum over directions of `one` in that direction times `others` in all the rest: (width,) * d."""
    return np.asarray(sum(_product([one if axis == l else others for axis in range(d)]) for l in range(d)))


@dataclass(frozen=True)
class Roundings:
    """Counts of the arithmetic of a product by cells.

    Parameters
    ----------
    d : int
        Coordinates of a point.
    orders, moments : int
        Orders of the local expansions, and of the moments, in each direction.
    leaf : int
        Most points of a leaf of the sources' tree.
    source_levels, target_levels : int
        Levels of both trees, the roots' included.
    displacement : float
        How far the distance of two points may be off by the rounding of their coordinates, in units of the profile; see
        `displacement`.
    """

    d: int
    orders: int
    moments: int
    leaf: int
    source_levels: int
    target_levels: int
    displacement: float

    def moment_errors(self, level: int) -> FloatArray:
        """Errors of the moments of a cell, in units of u times the magnitudes of its weights: (moments,) * d."""
        return _moment_errors(self.d, self.moments, self.leaf, self.source_levels - 1 - level)

    def local_errors(self, level: int, additions: int) -> FloatArray:
        """Errors that coefficients of a level cause at targets, in units of u times their magnitude: (orders,) * d.

        `additions` counts the expansions that are added to a cell of this level.
        """
        return _local_errors(self.d, self.orders, self.target_levels - 1 - level) + float(additions)

    def local_slope_errors(self, level: int, additions: int, axis: int) -> FloatArray:
        """Errors that coefficients of a level cause to slopes along an axis: (orders,) * d.

        In units of u times their magnitude, and of the coordinate t of the level's cells.
        """
        return _local_slope_errors(self.d, self.orders, self.target_levels - 1 - level, additions, axis)

    def displaced_slope(self, profile: Profile, parameter: float, nearest: float, farthest: float) -> float:
        """Bound on the change of slopes of entries between two distances by roundings of coordinates and of scales.

        The second derivative along any line is at most 2 M / c^2 where the kernel is analytic and at most M within c:
        along a line the squared distance is zeta^2 + q, whose real part falls from r^2 by at most 2 r c + c^2.
        """
        assert profile.modulus is not None
        r = max(nearest - self.displacement, 0.0)
        c = np.concatenate([r * np.linspace(0.02, 0.4, 20), 2.0 ** np.arange(-6.0, 3.0)])
        c = c[c > 0.0]
        base = np.maximum(r, c)
        re_s = base * base - 2.0 * base * c - c * c - 1e-12 * (base * base + c * c)
        with np.errstate(over="ignore", invalid="ignore"):
            M = np.asarray(
                profile.modulus(re_s, np.sqrt(np.maximum(re_s, 0.0)), farthest + self.displacement + c, parameter),
                np.float64,
            )
        second = np.where((re_s > profile.branch) & np.isfinite(M), 2.0 * M / (c * c), np.inf)
        change = self.displacement + SCALE_ROUNDINGS * UNIT * farthest
        slope = SCALE_ROUNDINGS * UNIT * float(profile.steepest(r, parameter))
        return EVALUATION * (float(second.min(initial=math.inf)) * change + slope)

    def displaced(self, profile: Profile, parameter: float, nearest: float) -> float:
        """Bound on the change of entries beyond a distance by roundings of coordinates and of scales."""
        r = max(nearest - self.displacement, 0.0)
        steepest = float(profile.steepest(r, parameter)) * self.displacement
        return (steepest + SCALE_ROUNDINGS * UNIT * float(profile.bulge(r, parameter))) * EVALUATION

    def near_error(self, profile: Profile, parameter: float, additions: int) -> float:
        """Bound on the error of the near part of a product, for a unit of the magnitudes of the near weights.

        `additions` is the longest chain of additions of a sum.
        """
        bulge = float(profile.bulge(0.0, parameter))
        entry = bulge * (self.d + SCALE_ROUNDINGS) + profile.rounding
        steepest = float(profile.steepest(0.0, parameter)) * self.displacement
        return EVALUATION * (UNIT * (entry + additions + 4.0) + steepest)


def displacement(extent: float, side: float, d: int) -> float:
    """Return how far the distance of two points may be off, in units of the profile.

    A coordinate less the least one, times a rounded factor, has three roundings of a number below the extent. A point's
    place in its cell is exact, except next to the root's least corner: there it is rounded once more, to a quarter of
    a unit of `side`. For near entries two points relative to a leaf's centre, times `side`, have two roundings each, of
    numbers whose sum is at most one.
    """
    return EVALUATION * 2.0 * math.sqrt(d) * UNIT * (3.0 * extent + 1.25 * side)


@lru_cache(maxsize=256)
def _moment_errors(d: int, width: int, leaf: int, depth: int) -> FloatArray:
    largest = np.zeros((width,) * d)
    summed = np.zeros((width,) * d)
    for below in range(depth + 1):
        table = _level(below)
        sizes, points = table.sizes[:width], table.points[:width]
        # At a leaf so far below: its sum, products with weights and with each other, polynomials at its points.
        at_leaf = (leaf + d + 1.0) * _product([sizes] * d) + _one_of_each(points, sizes, d)
        largest = np.maximum(largest, at_leaf)
        if below < depth:
            # In a sum over children: one chain of k + 1 terms for each direction, and the sum of the children.
            summed += _one_of_each(table.chains[:width], table.halves[:width], d) + 2.0**d * _product([sizes] * d)
    return largest + summed


@lru_cache(maxsize=256)
def _local_errors(d: int, width: int, depth: int) -> FloatArray:
    largest = np.zeros((width,) * d)
    summed = np.zeros((width,) * d)
    # At a leaf: d sums (the last two directions of three as one), products, and the sum with near entries.
    evaluated = 2.0 * width + 6.0 if d < 3 else width * width + width + 7.0
    for below in range(depth + 1):
        table = _level(below)
        sizes, points = table.sizes[:width], table.points[:width]
        largest = np.maximum(largest, evaluated * _product([sizes] * d) + _one_of_each(points, sizes, d))
        if below < depth:
            summed += d * (width + 1.0) * _product([table.halves[:width]] * d)
            summed += _product([_level(below + 1).sizes[:width]] * d)
    return largest + summed


@lru_cache(maxsize=256)
def _local_slope_errors(d: int, width: int, depth: int, additions: int, axis: int) -> FloatArray:
    def along(special: FloatArray, others: FloatArray) -> FloatArray:
        return _product([special[:width] if place == axis else others[:width] for place in range(d)])

    first = _level(0)
    largest = np.zeros((width,) * d)
    summed = additions * along(first.slopes, first.sizes)
    evaluated = 2.0 * width + 10.0 if d < 3 else width * width + width + 11.0
    for below in range(depth + 1):
        table = _level(below)
        here = evaluated * along(table.slopes, table.sizes) + along(table.slope_points, table.sizes)
        # Polynomials of the other axes at a point.
        for other in range(d):
            if other != axis:
                rows = [table.sizes[:width]] * d
                rows[axis], rows[other] = table.slopes[:width], table.points[:width]
                here = here + _product(rows)
        largest = np.maximum(largest, here)
        if below < depth:
            summed = summed + d * (width + 1.0) * along(table.slope_halves, table.halves)
            summed = summed + along(_level(below + 1).slopes, _level(below + 1).sizes)
    return largest + summed
