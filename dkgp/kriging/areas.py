"""The prior variance of a field's average over an area, in an interval as narrow as is asked for.

It lies between 2 Cov(average, sum) - Var(sum) and eps^2 more, for the sum over a lattice of cells (`quadrature`).
Covariances with the average are exact (`outlines`), and the lattice needs no solve, so that it may be fine. Whole cells
of a lattice have one shape: sums over their pairs are sums over offsets, whose numbers are an autocorrelation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.signal

from dkgp.data.types import FloatArray
from dkgp.kriging.outlines import Outline, covariances
from dkgp.kriging.quadrature import Cells, Rule, changes, kappa, lattice_centres, lattice_variance, rise, step
from dkgp.kriging.variogram import Variogram
from dkgp.models.rounding import EPS

# Cells a side of the finest lattices.
FINEST_RECTANGLE, FINEST_POLYGON = 512, 128
# Pairs that are evaluated together.
_PAIRS = 2**20


def variance_of(rule: Rule, variogram: Variogram, width: float) -> tuple[float, float]:
    """Return the ends of the prior variance of the average over a rule's block, in proportion to the field's variance.

    Parameters
    ----------
    width : float
        Of the interval, where the finest lattice allows it.
    """
    if rule.sides is not None:
        return rectangle_variance(rule.sides, variogram, width)
    return polygon_variance(rule.shape, variogram, width)


def rectangle_variance(sides: tuple[float, float], variogram: Variogram, width: float) -> tuple[float, float]:
    """Return the ends for a rectangle's width and height, or for some that differ by 1e-10 of their size."""
    total, matrix = variogram.field_variance, variogram.anisotropy(2)
    columns = matrix * np.array(sides)
    half = 0.5 * float(np.linalg.norm(np.abs(matrix) @ np.array(sides)))
    order = 32
    while True:
        order *= 2
        sum_variance, square = lattice_variance(columns, order, variogram)
        if square <= width * total or order == FINEST_RECTANGLE:
            break
    corners = 0.5 * np.array([(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)]) @ columns.T
    # The covariance is the same at both points of a pair about the centre.
    centres = lattice_centres(columns / order, order)[: order**2 // 2]
    values, errors, moved = covariances(Outline.of([corners], 8.0 * EPS * half), centres, variogram, 1.0)
    unsure = float((errors + moved).mean()) + len(values) * EPS
    slack = 2.0 * unsure + (1e-12 * sum_variance + 8.0 * changes(1e-10 * half, variogram)) / total
    low = 2.0 * float(values.mean()) - sum_variance / total
    return max(low - slack, 0.0), low + slack + square / total


def polygon_variance(shape: Any, variogram: Variogram, width: float) -> tuple[float, float]:
    """Return the ends for a shapely polygon, or several."""
    total, order = variogram.field_variance, 32
    while True:
        order *= 2
        cells = Cells.of(shape, order, variogram)
        sum_variance, square = _sums(cells, variogram)
        missed = (np.sqrt(square) + step(cells.shift, variogram) + 2.0 * cells.astray * np.sqrt(total)) ** 2
        if missed <= width * total or order == FINEST_POLYGON:
            break
    matrix = variogram.anisotropy(2)
    rings = [(ring - cells.origin) @ matrix.T for ring in cells.rings]
    places = np.concatenate([cells.full, cells.clipped])
    values, errors, moved = covariances(Outline.of(rings, cells.shift), places, variogram, 1.0)
    weights = np.concatenate([np.full(len(cells.full), cells.share), cells.shares])
    slack = 2.0 * float(weights @ (errors + moved)) + (4.0 * len(weights) + 16.0) * EPS
    # Nodes as computed, and their weights, are those of the sum: they have no error.
    slack += 4.0 * changes(64.0 * EPS * float(np.abs(places).max()), variogram) / total + 1e-12
    low = 2.0 * float(weights @ values) - sum_variance / total
    return max(low - slack, 0.0), low + slack + missed / total * (1.0 + 1e-9)


def _sums(cells: Cells, variogram: Variogram) -> tuple[float, float]:
    """Return the variance of the sum over the cells, and the bound on that of its error but for roundings."""
    inside = cells.inside.astype(np.float64)
    counts = np.rint(scipy.signal.fftconvolve(inside, inside[::-1, ::-1]))
    rows, columns = np.nonzero(counts > 0.5)
    offsets = np.column_stack([columns - inside.shape[1] + 1, rows - inside.shape[0] + 1]) @ cells.steps.T
    distance = np.linalg.norm(offsets, axis=1)
    pairs = counts[rows, columns] * cells.share**2
    size = np.array([cells.radius])
    sum_variance = float(pairs @ variogram.covariance(distance))
    missed = float(pairs @ kappa(distance, (size, size), 2.0 * rise(size, variogram), variogram))
    places = np.concatenate([cells.full, cells.clipped])
    weights = np.concatenate([np.full(len(cells.full), 2.0 * cells.share), cells.shares])
    radius = np.concatenate([np.full(len(cells.full), cells.radius), cells.radii])
    root = np.sqrt(2.0 * rise(radius, variogram))
    edge = slice(len(cells.full), None)
    together = max(1, _PAIRS // max(len(places), 1))
    for first in range(0, len(cells.clipped), together):
        some = slice(first, first + together)
        distance = _distances(cells.clipped[some], places)
        of_edge = cells.shares[some]
        sum_variance += float(of_edge @ variogram.covariance(distance) @ weights)
        radii = cells.radii[some, None], radius[None, :]
        bound = kappa(distance, radii, root[edge][some, None] * root[None, :], variogram)
        missed += float(of_edge @ bound @ weights)
    return sum_variance, missed


def _distances(left: FloatArray, right: FloatArray) -> FloatArray:
    return np.asarray(np.sqrt(((left[:, None, :] - right[None, :, :]) ** 2).sum(axis=2)))
