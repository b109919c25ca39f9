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
# What terms in u are multiplied by: their second order, and the evaluation of bounds; see `docs/proofs.md`.
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
    """Largest sums over j of |B_kj|, weighted, for T_k on a cell some levels below its own: (HIGHEST,) each."""

    sizes: FloatArray  # |B_kj|
    halves: FloatArray  # |B_kj| times the sum of |B| of one level more
    chains: FloatArray  # the same times j + 2, the roundings of a sum of j + 1 terms
    points: FloatArray  # |B_kj| times the error of T_j at a point


def polynomial_errors() -> FloatArray:
    """Errors of T_k(t) by its recurrence, in units of u: 3 k (k - 1) / 2."""
    k = np.arange(HIGHEST, dtype=np.float64)
    return 1.5 * k * (k - 1.0)


@lru_cache(maxsize=64)
def _level(depth: int) -> _Level:
    """Tables of cells `depth` levels below."""
    halves = np.abs(_half_table()).sum(axis=2).max(axis=0)
    weights = (
        np.ones(HIGHEST),
        halves,
        halves * (np.arange(HIGHEST) + 2.0),
        polynomial_errors(),
    )
    if depth <= _ENUMERATED:
        sizes = np.abs(_composed(depth))
        rows = [
            np.stack([sizes[:, :, j] * weight[j] for j in range(HIGHEST)]).sum(axis=0).max(axis=0) for weight in weights
        ]
    else:
        # sum over j >= 1 of |B_kj| <= T_k(1 + h) - 1, h the half side: the Taylor coefficients at any centre are below
        # those at one. |B_k0| <= 1.
        x = 1.0 + 2.0**-depth
        chebyshev = [1.0, x]
        for _ in range(HIGHEST - 2):
            chebyshev.append(2.0 * x * chebyshev[-1] - chebyshev[-2])
        more = (np.array(chebyshev) - 1.0) * (1.0 + 1e-9) + 1e-12
        more[0] = 0.0
        rows = [weight[0] + more * np.maximum.accumulate(weight) for weight in weights]
    return _Level(*(row * (1.0 + 1e-9) for row in rows))


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


def displacement(largest: float, side: float, d: int) -> float:
    """Return how far the distance of two points may be off, in units of the profile.

    A coordinate x, scaled and rounded, less the least one, over `side`: one rounding of |x| <= `largest`, and two of a
    number below one. A point's place in its cell is exact, except next to the root's least corner: there it is rounded
    once more, to an eighth of a unit of `side`. Coordinates times `side` again, for near entries, are rounded once.
    """
    each = UNIT * (largest + 3.25 * side)
    return EVALUATION * 2.0 * math.sqrt(d) * each


@lru_cache(maxsize=256)
def _moment_errors(d: int, width: int, leaf: int, depth: int) -> FloatArray:
    largest = np.zeros((width,) * d)
    summed = np.zeros((width,) * d)
    for below in range(depth + 1):
        table = _level(below)
        sizes, points = table.sizes[:width], table.points[:width]
        # Of a leaf so far below: its sum, and products with weights and with each other; polynomials at its points.
        own = (leaf + d + 1.0) * _product([sizes] * d) + _one_of_each(points, sizes, d)
        largest = np.maximum(largest, own)
        if below < depth:
            # Of a sum over children: one chain of k + 1 terms for each direction, and the children's own sum.
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
