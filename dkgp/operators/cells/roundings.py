"""Roundings of a product by cells, counted (Lemma 8 of `docs/proofs.md`).

The errors of moments are relative to the sum of the magnitudes of a cell's weights; all later ones are relative to the
moments as they are. Each is followed from the level where it arises to the value at a target: a table of errors, one
for each order, which `Expansion.row_weights` weighs by the magnitudes of the expansion's coefficients. Low orders carry
most of an expansion and have few roundings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dkgp.kernels.program import Profile
from dkgp.kernels.tiles.encoding import SCALE_ROUNDINGS
from dkgp.operators.cells.extended import FloatArray

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
