"""Proven expansions of a kernel between two cells of one level (Theorem 19 and Lemmas 6 to 8 of `docs/proofs.md`).

Points are mapped to y in [0, 1)^d; a cell of level l is (i + [0, 1)^d) / 2^l with its own coordinate
t = y 2^(l+1) - (2 i + 1) in [-1, 1]^d. Two cells of one level at the integer offset o have x - y = side (o + w) with
w = (t - u) / 2 in [-1, 1]^d: the kernel between them is one function G(w) = f(|side (o + w)|^2), the same for all pairs
of that level and offset. All lengths are in the units of the profile (`dkgp.kernels.program.Profile`).

1. b_K: Chebyshev coefficients of the interpolant I_P G on P^d points, in `Extended` numbers.
2. |G - I_P G| is bounded on Bernstein ellipses: G is analytic in each w_j within one, for all real other w.
3. T_K((t - u) / 2) = sum_ab W^K_ab T_a(t) T_b(u) is finite, with numbers known exactly. Terms with a and b in a set are
   kept, as few as will do; the magnitudes of those dropped add up to the bound.
4. Where the source's moments mu_b are known to a higher order than p, dropped terms cost |mu_b|, and only the terms
   beyond that order cost the sum of the magnitudes of the cell's weights.

Every number that a plan decides by has the same bits on every machine: coefficients come from exact products of slices,
and bounds are rounded up to eleven bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dkgp.kernels.program import Profile
from dkgp.operators.cells.roundings import (
    EVALUATION,
    SLICED_ERROR,
    UNIT,
    Extended,
    FloatArray,
    Roundings,
    Sliced,
    cosines,
    extended_functions,
    rounded_product,
    sliced,
    sliced_product,
)

# Points of the interpolant in each direction: the fewest that leave little enough.
POINTS = (12, 16, 20, 24, 28, 32, 40, 48, 56)
# Highest order of any expansion, that of one which few pairs of cells share (in three dimensions an expansion of order
# 16 takes seconds to make), and orders of the moments beyond it that its bound looks at.
ORDERS = {1: 18, 2: 18, 3: 16}
CHEAP_ORDERS = {1: 18, 2: 18, 3: 10}
EXTRA = 4
# Orders that signs save, of those that the terms' sizes ask for.
SIGNS = 2
# The interpolant's error relative to the tolerance: it is paid by the magnitudes of weights, not by moments.
_INTERPOLATION_SHARE = 2e-4
_INFLATED = 1.0 + 1e-9
# Entries of a large table that are worked on at a time.
_RUN_ENTRIES = 2**17


def rounded_up(value: float) -> float:
    """Return the least number of eleven bits above a value and its roundings: the same wherever it was computed."""
    if not 0.0 < value < math.inf:
        return value
    mantissa, exponent = math.frexp(value * (1.0 + 1e-12))
    return math.ldexp(math.ceil(mantissa * 2048.0) / 2048.0, exponent)


# ---------------------------------------------------------------------------------------------------- Chebyshev tables


@lru_cache(maxsize=32)
def _nodes(points: int) -> Extended:
    return cosines(points)[2 * np.arange(points) + 1]


@lru_cache(maxsize=32)
def _transform(points: int) -> Sliced:
    """cos(k theta_m), (k, m): coefficients are sums of values by it, times 2 / P, or 1 / P for k = 0."""
    k, m = np.arange(points)[:, None], np.arange(points)[None]
    return sliced(cosines(points)[k * (2 * m + 1) % (4 * points)])


@lru_cache(maxsize=32)
def _split_integers(points: int) -> NDArray[np.int64]:
    """2**K W^K_ab (K, a, b), T_K((t - u) / 2) = sum W^K_ab T_a(t) T_b(u): integers below 2**(K + 3).

    From T_(K+1)(w) = (t - u) T_K(w) - T_(K-1)(w), and 2 t T_a(t) = T_(a+1)(t) + T_|a-1|(t).
    """
    table = np.zeros((points, points + 1, points + 1), np.int64)

    def doubled(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Coefficients of 2 t times a polynomial, along the first axis."""
        out = np.zeros_like(rows)
        out[1:] += rows[:-1]
        out[:-1] += rows[1:]
        out[1] += rows[0]
        return out

    table[0, 0, 0] = 1
    for order in range(1, points):
        # 2**K (t - u) T_(K-1) = (2 t - 2 u) 2**(K-1) T_(K-1), twice the wanted one for K = 1.
        last = table[order - 1]
        table[order] = doubled(last) - doubled(last.T).T
        if order == 1:
            table[order] //= 2
        else:
            table[order] -= 4 * table[order - 2]
    return table[:, :points, :points]


@lru_cache(maxsize=64)
def _split_slices(points: int, width: int) -> list[tuple[NDArray[np.int64], Sliced]]:
    """For even and odd K: places of the pairs a, b < width whose sum is so too, and the table's rows for them."""
    table = _split_integers(points)[:, :width, :width].reshape(points, -1)
    power = 2.0 ** -np.arange(points, dtype=np.float64)[:, None]
    high = table.astype(np.float64)
    low = (table - high.astype(np.int64)).astype(np.float64)
    flat = Extended(high * power, low * power)
    a, b = np.divmod(np.arange(width * width), width)
    places = [np.flatnonzero((a + b) % 2 == parity) for parity in (0, 1)]
    rows = [flat[parity::2][:, places[parity]] for parity in (0, 1)]
    return [(place, sliced(Extended(row.high.T, row.low.T))) for place, row in zip(places, rows, strict=True)]


@lru_cache(maxsize=32)
def _split_sizes(points: int) -> FloatArray:
    """|W^K_ab| (K, a, b), a little larger."""
    sizes = np.abs(_split_integers(points).astype(np.float64))
    return np.asarray(sizes * (2.0 ** -np.arange(points) * _INFLATED)[:, None, None])


@lru_cache(maxsize=512)
def _kept_sums(points: int, width: int) -> tuple[FloatArray, FloatArray]:
    """Sums of |W^K_ab| over a, b < width, and over all others: (K,) each."""
    sizes = _split_sizes(points)
    kept = sizes[:, :width, :width].sum(axis=(1, 2))
    return kept, sizes[:, width:].sum(axis=(1, 2)) + sizes[:, :width, width:].sum(axis=(1, 2))


@lru_cache(maxsize=512)
def _target_sums(points: int, orders: int, width: int) -> tuple[FloatArray, FloatArray]:
    """Sums over a < orders, and over all other a, of |W^K_ab|, for b < width: (K, width) each."""
    sizes = _split_sizes(points)[:, :, :width]
    return sizes[:, :orders].sum(axis=1), sizes[:, orders:].sum(axis=1)


@lru_cache(maxsize=512)
def _steep_sums(points: int, orders: int, width: int) -> tuple[FloatArray, FloatArray]:
    """Return the sums of `_target_sums` with each |W^K_ab| times a^2."""
    sizes = _split_sizes(points)[:, :, :width] * np.arange(points, dtype=np.float64)[None, :, None] ** 2
    return sizes[:, :orders].sum(axis=1), sizes[:, orders:].sum(axis=1)


@lru_cache(maxsize=512)
def _steep_source_sums(points: int, width: int) -> tuple[FloatArray, FloatArray]:
    """Sums over all a, and b < width, or all other b, of a^2 |W^K_ab|: (K,) each."""
    sizes = (_split_sizes(points) * np.arange(points, dtype=np.float64)[None, :, None] ** 2).sum(axis=1)
    return sizes[:, :width].sum(axis=1), sizes[:, width:].sum(axis=1)


@lru_cache(maxsize=512)
def _source_sums(points: int, width: int) -> tuple[FloatArray, FloatArray]:
    """Sums over all a, and b < width, or all other b, of |W^K_ab|: (K,) each."""
    sizes = _split_sizes(points).sum(axis=1)
    return sizes[:, :width].sum(axis=1), sizes[:, width:].sum(axis=1)


# ----------------------------------------------------------------------------------------------------- Bernstein bounds


def lebesgue(points: int) -> float:
    """Return a bound on the Lebesgue constant of the Chebyshev points (Rivlin 1974, theorem 1.2)."""
    return 1.0 + 2.0 / math.pi * math.log(points + 1)


def _ellipse_bounds(
    profile: Profile, parameter: float, side: float, offset: tuple[int, ...], direction: int
) -> tuple[FloatArray, FloatArray]:
    """Parameters rho of ellipses in one direction, and bounds M of |G| on them: infinite where G is not analytic."""
    o = float(offset[direction])
    others = [float(value) for place, value in enumerate(offset) if place != direction]
    least = side * side * sum(max(value - 1.0, 0.0) ** 2 for value in others)
    greatest = side * side * sum((value + 1.0) ** 2 for value in others)
    edges = []
    if o >= 2.0:
        edges.append(o + math.sqrt(o * o - 1.0))
    # An ellipse around tiny cells may be as large as any: squares of this one are finite.
    reach = min(math.sqrt(max(least - profile.branch, 0.0)) / side, 1e75) if math.isfinite(profile.branch) else 0.0
    if reach > 0.0:
        edges.append(reach + math.sqrt(reach * reach + 1.0))
        edges.extend(edge * (1.0 - 2.0**-k) for edge in tuple(edges) for k in (2, 4, 6, 8))
    steps = 1.0 + 2.0 ** np.linspace(-6.0, 6.0, 241)
    rho = np.concatenate([steps, np.array(edges) * (1.0 - 1e-9)])
    rho = rho[rho > 1.0 + 1e-3]
    A, B = (rho + 1.0 / rho) / 2.0, (rho - 1.0 / rho) / 2.0
    # On the ellipse w = A cos + i B sin: Re (o + w)^2 = (A^2 + B^2) c^2 + 2 o A c + o^2 - B^2 for c = cos, which is
    # least at c = -o A / (A^2 + B^2).
    squares = A * A + B * B
    c = np.maximum(-o * A / squares, -1.0)
    re_square = (squares * c + 2.0 * o * A) * c + o * o - B * B
    re_s = side * side * re_square + least
    re_s = re_s - 1e-12 * (side * side * (o + A) ** 2 + greatest)
    right = o >= A * (1.0 + 1e-12)
    re_root = np.where(right, (o - A) * side * (1.0 - 1e-12), 0.0)
    size = np.sqrt((side * (o + A)) ** 2 + greatest) * (1.0 + 1e-12)
    analytic = re_s > profile.branch + 1e-9
    if profile.branch <= 0.0:
        analytic |= right & (o > A)
    assert profile.modulus is not None
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        bounds = np.asarray(profile.modulus(re_s, re_root, size, parameter), np.float64)
    return rho, np.where(analytic & ~np.isnan(bounds), bounds, np.inf)


@dataclass(frozen=True)
class Interpolation:
    """Bounds on the error of the interpolant of a class, for each number of points in `POINTS`: of values, of slopes.

    `slopes[j]` bounds the derivative of G - I_P G in w_j.
    """

    values: FloatArray
    slopes: FloatArray


@lru_cache(maxsize=4096)
def _interpolation(profile: Profile, parameter: float, side: float, offset: tuple[int, ...]) -> Interpolation:
    counts = np.array(POINTS, np.float64)
    d = len(offset)
    one, steep = np.full((d, len(counts)), np.inf), np.full((d, len(counts)), np.inf)
    for j in range(d):
        rho, M = _ellipse_bounds(profile, parameter, side, offset, j)
        finite = np.isfinite(M) & (M < 1e280)
        if not finite.any():
            continue
        rho, M = rho[finite], M[finite]
        with np.errstate(over="ignore", under="ignore"):
            # Positive powers by products: NumPy's power has other bits elsewhere.
            tail = 4.0 * M[None] * _inverse_powers(rho, POINTS)
            one[j] = (tail * (rho / (rho - 1.0))).min(axis=1)
            # The sum over k >= P of k^2 x^(k - P), x = 1 / rho, is (P^2 + (2 P + 1) g + 2 g^2) / (1 - x).
            x = 1.0 / rho
            g = x / (1.0 - x)
            sums = (counts**2)[:, None] + (2.0 * counts + 1.0)[:, None] * g + 2.0 * g * g
            steep[j] = (tail * sums / (1.0 - x)).min(axis=1)
    lam = np.array([lebesgue(points) for points in POINTS])
    with np.errstate(invalid="ignore"):
        values = sum(lam**j * one[j] for j in range(d))
        slopes = []
        for j in range(d):
            others = [one[i] for i in range(d) if i != j]
            rest = sum((lam**i * other for i, other in enumerate(others)), np.zeros(len(counts)))
            slopes.append(steep[j] + (counts - 1.0) ** 2 * lam * rest)
    return Interpolation(
        np.array([rounded_up(float(value)) for value in np.asarray(values)]),
        np.array([[rounded_up(float(value)) for value in row] for row in slopes]),
    )


def _inverse_powers(rho: FloatArray, exponents: tuple[int, ...]) -> FloatArray:
    """rho**-k for rising k: (exponents, rho)."""
    out, value, last = np.empty((len(exponents), len(rho))), np.ones_like(rho), 0
    for place, exponent in enumerate(exponents):
        for _ in range(exponent - last):
            value = value / rho
        out[place], last = value, exponent
    return out * _INFLATED


# ----------------------------------------------------------------------------------------------------------- expansions


@lru_cache(maxsize=128)
def shells(width: int, d: int) -> NDArray[np.int64]:
    """Return the largest of the indices of each coefficient: (width**d,)."""
    return np.asarray(np.indices((width,) * d).reshape(d, -1).max(axis=0))


# Classes of the second index beside the first, in two dimensions.
_SECOND = 4
# Groups are padded to a multiple of this, for loops with as many sums side by side.
_SIDE_BY_SIDE = 4


def group_of(index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the groups of coefficients with indices (d, ...), over which the sums of a bound are taken.

    Dropped terms of one group differ little, and those of one largest index k by decades. A group has one k, in two
    dimensions also one of four ranges of the other index, and in three one sum of the other two. Neither signs nor the
    order of the axes matter. Groups with k below a width are the first `group_count(width, d)`, but for padding.
    """
    d, k = len(index), index.max(axis=0)
    rest = index.sum(axis=0) - k
    if d == 1:
        return np.asarray(k)
    return np.asarray(_SECOND * k + _SECOND * rest // (k + 1) if d == 2 else k * k + rest)


def group_count(width: int, d: int) -> int:
    """Return the number of groups of indices below a width, padded."""
    count = {1: width, 2: _SECOND * width, 3: width * width}[d]
    return -(-count // _SIDE_BY_SIDE) * _SIDE_BY_SIDE


@lru_cache(maxsize=128)
def groups(width: int, d: int) -> NDArray[np.int64]:
    """Return the group of each coefficient: (width**d,)."""
    return group_of(np.indices((width,) * d).reshape(d, -1))


class Expansion:
    """A proven expansion of the kernel between two cells of one side, at one offset.

    Parameters
    ----------
    profile, parameter
        Of the kernel's term.
    side : float
        Of the cells, in the units of the profile.
    offset : tuple of int
        From the source's cell to the target's, none below zero and in falling order; others follow by symmetry.
    tolerance : float
        The error that is allowed for a unit of the magnitudes of weights.
    slopes : bool, default False
        Prepare `slope_weights` too.
    cap : int, optional
        Highest order; that of `ORDERS` by default.

    Attributes
    ----------
    order : int
        Indices of the kept coefficients are below it; 0 where the pair may be left out, -1 where nothing within the
        tolerance is proven and cells have to be divided.
    bound : float
        The proven bound: |k(x, y) - sum_ab A_ab T_a(t) T_b(u)| <= bound in the two cells; infinite for order -1.
    kept : (d, count) int64
        Indices of the coefficients that are kept; none for orders 0 and -1.
    operator : (count, count) float64
        A: rows are the source's moments b, columns the target's coefficients a. None for orders 0 and -1.
    """

    def __init__(
        self,
        profile: Profile,
        parameter: float,
        side: float,
        offset: tuple[int, ...],
        tolerance: float,
        *,
        slopes: bool = False,
        cap: int | None = None,
    ) -> None:
        self.d = d = len(offset)
        self._cap = ORDERS[d] if cap is None else cap
        self.side, self.offset = side, offset
        near = side * math.sqrt(sum(max(value - 1, 0) ** 2 for value in offset)) * (1.0 - 1e-12)
        far = side * math.sqrt(sum((value + 1) ** 2 for value in offset)) * (1.0 + 1e-12)
        self.nearest, self.farthest = near, far
        self.order, self.bound = -1, math.inf
        self.operator: FloatArray | None = None
        self.kept: NDArray[np.int64] = np.zeros((d, 0), np.int64)
        if near >= profile.support:
            self.order, self.bound = 0, 0.0
            return
        formula = profile.formula
        assert formula is not None
        functions = extended_functions()
        highest = rounded_up(float(formula(Extended(np.array([near * near])), parameter, functions).high[0]))
        self.highest = highest
        if highest <= tolerance:
            self.order, self.bound = 0, highest
            return
        if far > profile.support:
            return
        interpolation = _interpolation(profile, parameter, side, offset)
        allowed = max(_INTERPOLATION_SHARE * tolerance, highest * UNIT)
        enough = np.flatnonzero(interpolation.values <= allowed)
        hopeful = np.flatnonzero(interpolation.values <= tolerance / 4.0)
        # Half as many orders as points is about all that can be dropped.
        if not len(hopeful) or POINTS[hopeful[0]] > 2 * self._cap + 8:
            return
        place = int(enough[0]) if len(enough) else len(POINTS) - 1
        points = POINTS[place]
        coefficients, off = self._interpolant(profile, parameter, points)
        self._slopes: list[tuple[FloatArray, float]] = []
        self._expand(coefficients, off, interpolation, place, tolerance, slopes)

    def _interpolant(self, profile: Profile, parameter: float, points: int) -> tuple[Extended, float]:
        """Chebyshev coefficients (P,) * d, and a bound on the difference of their polynomial from the interpolant."""
        d, tau = self.d, _nodes(points)
        s: Extended | None = None
        for j, o in enumerate(self.offset):
            z = (tau + float(o)) * self.side
            square = (z * z).reshape(*[-1 if axis == j else 1 for axis in range(d)])
            s = square if s is None else s + square
        assert s is not None
        assert profile.formula is not None
        functions = extended_functions()
        values = profile.formula(s.reshape(-1), parameter, functions)
        lam = lebesgue(points)
        # Values: the functions' error, that of s times the slope, and the nodes' errors.
        off = lam**d * self.highest * (1.0 + parameter) * 2.0**-72
        values = values * (Extended(np.array(2.0)) / Extended(np.array(float(points))))
        for _ in range(d - 1):
            values = values * (Extended(np.array(2.0)) / Extended(np.array(float(points))))
        b = values.reshape(*[points] * d)
        table = _transform(points)
        for j in range(d):
            rows = b.moveaxis(j, -1).reshape(-1, points)
            cut = sliced(rows)
            # Rows of the axes done are coefficients, whose errors add up; of the others they are values at nodes.
            scale = cut.scale.reshape([points] * (d - 1))
            largest = scale.reshape(points**j, -1).max(axis=1)
            off += (
                lam ** (d - 1 - j)
                * points
                * points
                * SLICED_ERROR
                * float(largest.sum())
                * (points / 2.0) ** (d - 1 - j)
            )
            product = sliced_product(cut, table)
            b = product.reshape(*[points] * d).moveaxis(-1, j)
            halved = np.ones([points if axis == j else 1 for axis in range(d)])
            halved[tuple(slice(0, 1) if axis == j else slice(None) for axis in range(d))] = 0.5
            b = b.times_power(halved)
        return b, off * _INFLATED

    def _expand(
        self, b: Extended, off: float, interpolation: Interpolation, place: int, tolerance: float, slopes: bool
    ) -> None:
        points = POINTS[place]
        tables_off, off = off, off + float(interpolation.values[place])
        d, cap = self.d, self._cap
        size = np.abs(b.high) * _INFLATED
        # Without signs first: the order that the size of every term allows.
        guess = 1
        while guess < points and _outside(size, *_kept_sums(points, guess)) + off > tolerance:
            guess += 1
            if guess > cap + SIGNS:
                return
        # With signs for a, b < box, without for other a, b < known, as a sum for those b that the moments lack.
        box, known = guess, min(guess + EXTRA - SIGNS, points)
        A, table_error = _split(b, points, box)
        outside = _outside(size, *_target_sums(points, box, known)).ravel()
        everywhere = _contracted(size, [_split_sizes(points)[:, :, :known].sum(axis=1)] * d).ravel()
        rest = float(_outside(size, *_source_sums(points, known))) + off + table_error
        shell, places = shells(box, d), np.flatnonzero(shells(known, d) < box)
        keep = _chosen(
            A, shell, cap, 0.999 * tolerance - rest - float(outside[places].sum() + _others(everywhere, places))
        )
        if keep is None:
            return
        kept = np.flatnonzero(keep)

        def dropped(outside: FloatArray, everywhere: FloatArray, factors: FloatArray | None = None) -> FloatArray:
            """Sums over the dropped a, for each b < known; `factors` (box**d,) of the a."""
            out = everywhere.copy()
            out[places] = _row_sums(A, factors) + outside[places]
            few = None if factors is None else factors[~keep]
            out[places[kept]] = _row_sums(A[kept][:, ~keep], few) + outside[places[kept]]
            return out * _INFLATED

        self._dropped, self._rest, self._known = dropped(outside, everywhere), rest, known
        self.kept = np.indices((box,) * d).reshape(d, -1)[:, kept]
        self.order, self.bound = int(self.kept.max()) + 1, rounded_up(float(self._dropped.sum()) + rest)
        self.operator = np.ascontiguousarray(A[np.ix_(kept, kept)])
        if not slopes:
            return
        # Derivatives: |T_a'| <= a^2, and those of a polynomial of degree m are at most m^2 times its values (Markov).
        for axis in range(d):
            squares = np.indices((box,) * d)[axis].ravel().astype(np.float64) ** 2
            outside = _outside(size, *_target_sums(points, box, known), *_steep_sums(points, box, known), axis).ravel()
            tables = [_target_sums(points, points, known)[0]] * d
            tables[axis] = _steep_sums(points, points, known)[0]
            steep = dropped(outside, _contracted(size, tables).ravel(), squares)
            rest = float(_outside(size, *_source_sums(points, known), *_steep_source_sums(points, known), axis))
            rest += (points - 1.0) ** 2 * tables_off + (box - 1.0) ** 2 * table_error
            # By the coordinate t; the interpolant's error is one of w = (t - u) / 2.
            self._slopes.append((steep, rest * _INFLATED + 0.5 * float(interpolation.slopes[axis, place])))

    def left_out(self, profile: Profile, parameter: float, roundings: Roundings) -> float:
        """Return the error of leaving the pair out, for a unit of the magnitudes of the source's weights."""
        return self.bound + roundings.displaced(profile, parameter, self.nearest)

    def slope_left_out(self, profile: Profile, parameter: float, roundings: Roundings) -> float:
        """Return the error of a derivative along any line, per unit of the profile, from leaving the pair out."""
        r = max(self.nearest - roundings.displacement, 0.0)
        return float(profile.steepest(r, parameter)) * (1.0 + 1e-9)

    def row_weights(
        self, profile: Profile, parameter: float, roundings: Roundings, level: int, additions: int
    ) -> tuple[FloatArray, float]:
        """Weights of the source's moments and of its weights in the bound of a target's row.

        With S_g the sum of the magnitudes of the source cell's computed moments of a group g, and |v| that of its
        weights, the pair adds at most sum_g weights[g] S_g + remainder |v| to the error of a row: all that was dropped,
        and all roundings from the points to the result.

        Parameters
        ----------
        level : int
            Of the two cells.
        additions : int
            Most expansions that are added to any cell of this level.

        Returns
        -------
        (group_count(roundings.moments, d),) float64 and float
        """
        assert self.operator is not None
        kept = np.abs(self.operator)
        local = roundings.local_errors(level, additions)[tuple(self.kept)]
        weights, remainder = self._weighted(kept, local, self._dropped, self._rest, roundings, level)
        remainder += roundings.displaced(profile, parameter, self.nearest)
        return np.array([rounded_up(float(weight)) for weight in weights]), rounded_up(float(remainder))

    def slope_weights(
        self, profile: Profile, parameter: float, roundings: Roundings, level: int, additions: int, axis: int
    ) -> tuple[FloatArray, float]:
        """Return the same for the derivative of a row along an axis of the offset, per unit of the profile.

        For expansions that were made with `slopes`; derivatives of T_k are k U_(k-1), by the recurrence of U.
        """
        assert self.operator is not None
        kept = np.abs(self.operator)
        local = roundings.local_slope_errors(level, additions, axis)[tuple(self.kept)]
        weights, remainder = self._weighted(
            kept * self.kept[axis].astype(np.float64) ** 2, local, *self._slopes[axis], roundings, level, kept
        )
        steps = 2.0 / self.side
        remainder = remainder * steps + roundings.displaced_slope(profile, parameter, self.nearest, self.farthest)
        return np.array([rounded_up(float(weight * steps)) for weight in weights]), rounded_up(float(remainder))

    def _weighted(
        self,
        sizes: FloatArray,
        local: FloatArray,
        dropped: FloatArray,
        rest: float,
        roundings: Roundings,
        level: int,
        kept: FloatArray | None = None,
    ) -> tuple[FloatArray, float]:
        """Weights of moments and of weights; `sizes` are the effects of coefficients on a target."""
        known = min(roundings.moments, self._known)
        inside = shells(self._known, self.d) < known
        weights = np.zeros(group_count(roundings.moments, self.d))
        np.maximum.at(weights, groups(self._known, self.d)[inside], dropped[inside])
        beyond = float(dropped[~inside].sum())
        # Roundings. The moments' errors, on their way through the kept coefficients and through the bound itself:
        moment_errors = roundings.moment_errors(level)
        column_sums = sizes.sum(axis=1)
        errors = float((column_sums * moment_errors[tuple(self.kept)]).sum())
        sums = np.bincount(groups(known, self.d), weights=_corner(moment_errors, known), minlength=len(weights))
        errors += float((weights * sums).sum())
        # coefficients rounded, sums over the kept moments, and all that happens to the local expansion afterwards.
        later = (self.kept.shape[1] + 2.0) * column_sums + (sizes if kept is None else kept) @ local
        np.maximum.at(rounded := np.zeros(len(weights)), group_of(self.kept), later)
        return weights + EVALUATION * UNIT * rounded, beyond + rest + EVALUATION * UNIT * errors


def _others(everywhere: FloatArray, places: NDArray[np.int64]) -> float:
    """Sum of all but some places."""
    rest = everywhere.copy()
    rest[places] = 0.0
    return float(rest.sum())


def _chosen(A: FloatArray, shell: NDArray[np.int64], cap: int, allowed: float) -> NDArray[np.bool_] | None:
    """Mark the coefficients to keep: the lowest orders, up to `cap`, that leave out no more than half of the allowed.

    Of these, the smallest are dropped too, up to all that is allowed. None where no order up to `cap` reaches that.
    """
    levels = np.arange(int(shell.max()) + 1)
    by_order = np.argsort(shell, kind="stable")
    begins = np.searchsorted(shell[by_order], levels)
    by_shell = np.empty((len(A), len(levels)))
    for begin, end in _row_runs(*A.shape):
        by_shell[begin:end] = np.add.reduceat(np.abs(A[begin:end, by_order]), begins, axis=1)
    both = np.stack([by_shell[shell == k].sum(axis=0) for k in levels])
    highest = np.maximum(levels[:, None], levels[None])
    most = min(len(levels), cap)
    for p in range(1, most + 1):
        left = allowed - float(both[highest >= p].sum()) * _INFLATED
        if left >= (0.5 * allowed if p < most else 0.0):
            low = np.flatnonzero(shell < p)
            columns, rows = np.zeros((2, len(low)))
            for begin, end in _row_runs(len(low), len(low)):
                part = np.abs(A[np.ix_(low[begin:end], low)])
                rows[begin:end] = part.sum(axis=1)
                columns = np.concatenate([columns[None], part]).sum(axis=0)
            importance = columns + rows
            order = np.argsort(importance, kind="stable")
            few = int(np.searchsorted(np.cumsum(importance[order]) * _INFLATED, left, side="right"))
            keep = np.zeros(len(shell), bool)
            keep[low[order[min(few, len(low) - 1) :]]] = True
            return keep
    return None


def _row_sums(A: FloatArray, factors: FloatArray | None = None) -> FloatArray:
    """Return the sums of the magnitudes of rows, of entries times factors of their columns."""
    out = np.empty(len(A))
    for begin, end in _row_runs(*A.shape):
        part = np.abs(A[begin:end])
        out[begin:end] = (part if factors is None else part * factors).sum(axis=1)
    return out


def _corner(table: FloatArray, width: int) -> FloatArray:
    """Entries of a table (.,) * d whose indices are all below `width`, as one row."""
    return np.ascontiguousarray(table[(slice(0, width),) * table.ndim]).ravel()


def _contracted(size: FloatArray, tables: list[FloatArray]) -> FloatArray:
    """Sum of an array's entries (K, ..) times tables (K, ..) of its axes, one for each."""
    out = size
    for table in tables:
        out = np.tensordot(out, table, (0, 0))
    return out


def _outside(
    size: FloatArray,
    inside: FloatArray,
    others: FloatArray,
    steep_inside: FloatArray | None = None,
    steep_others: FloatArray | None = None,
    axis: int = -1,
) -> FloatArray:
    """Bound all terms with `others` on at least one axis and `inside` or `others` on the rest, without a difference.

    One axis may have tables of its own.
    """
    d = size.ndim
    first, second = [inside] * d, [others] * d
    if steep_inside is not None and steep_others is not None:
        first[axis], second[axis] = steep_inside, steep_others
    either = [a + b for a, b in zip(first, second, strict=True)]
    total: FloatArray = np.zeros(())
    for j in range(d):
        total = total + _contracted(size, [*either[:j], second[j], *first[j + 1 :]])
    return total


def _split(b: Extended, points: int, width: int) -> tuple[FloatArray, float]:
    """A[b, a] (width**d, width**d) in float64, and a bound on the sum of the errors of all entries, roundings apart."""
    d = len(b.shape)
    largest = float(_kept_sums(points, width)[0].max())
    error = 0.0
    current = b  # axes: K of the directions to come, then pairs (a, b) of those done
    A = np.zeros((width,) * (2 * d))
    pairs = A.transpose([axis for j in range(d) for axis in (d + j, j)])[None]  # a view: a and b of each direction
    for j in range(d):
        rows = current.moveaxis(0, -1)
        shape = rows.shape[:-1]
        flat = rows.reshape(-1, points)
        last = j == d - 1
        high, low = np.zeros((2, 0 if last else flat.shape[0], width * width))
        tables = _split_slices(points, width)
        scales: list[list[FloatArray]] = [[] for _ in tables]
        for begin, end in _row_runs(flat.shape[0], width * width):
            block = np.zeros((end - begin, width * width))
            for parity, (places, table) in enumerate(tables):
                present = begin + np.flatnonzero(flat.high[begin:end, parity::2].any(axis=1))
                if not len(present):
                    continue
                cut = sliced(flat[present][:, parity::2])
                scales[parity].append(cut.scale)
                if last:
                    block[present[:, None] - begin, places] = rounded_product(cut, table)
                else:
                    part = sliced_product(cut, table)
                    high[present[:, None], places], low[present[:, None], places] = part.high, part.low
            if last:
                done = np.unravel_index(np.arange(begin, end), (1, *(width, width) * (d - 1)))
                pairs[done] = block.reshape(-1, width, width)
        for parity, parts in enumerate(scales):
            if parts:
                total = float(np.concatenate(parts).sum()) * float(tables[parity][1].scale.sum())
                error += largest ** (d - 1 - j) * ((points + 1 - parity) // 2) * SLICED_ERROR * total
        if not last:
            current = Extended(high, low).reshape(*shape, width * width)
    return A.reshape(width**d, width**d), error * _INFLATED


def _row_runs(count: int, width: int) -> Iterator[tuple[int, int]]:
    """Cut so many rows of a width into runs that fit into a cache."""
    step = max(16, _RUN_ENTRIES // max(width, 1))
    return ((begin, min(begin + step, count)) for begin in range(0, count, step))
