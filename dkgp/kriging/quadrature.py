"""Averages of a field over blocks as weighted sums of its values, with a proven bound on what the sum misses.

A block B with its uniform density is cut into cells q of weights w_q (their shares of the area) with nodes z_q at their
centroids: the midpoint rule. Its error f_B - sum w_q f(z_q) has under the prior the variance

    eps^2 <= sum_q w_q^2 2 gamma(rho_q) + sum_{q != q'} w_q w_q' kappa_qq',

gamma the semivariogram without nugget, rho_q the cell's circumradius about its centroid. kappa is 2 sqrt(gamma(rho_q)
gamma(rho_q')) by Cauchy and Schwarz, and rho_q^2 rho_q'^2 M4 / 4 for cells apart, since a centroid kills linear terms,
M4 a bound on the fourth derivatives D_u^2 D_v^2 of the covariance over differences of the cells' points. For c = f(s),
s = |x|^2, and unit vectors,

    |D_u^2 D_v^2 c| <= 16 r^4 |f''''| + 48 r^2 |f'''| + 12 |f''|.

Another rule on the same block with nodes and weights of its own has an error of at most eps + sqrt(u'Cu), u the
difference of both rules' weights on all nodes: a number that is computed. A rectangle takes the Gauss-Legendre rule.

By the reproducing property the mean of the block differs from the rule's by at most eps |m|_H, and the deviations of
both by at most eps: the posterior variance of a functional is no more than its prior variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special

from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.kriging.variogram import Variogram

# Above the roundings of all formulas here, whose terms are positive.
_ROUNDINGS = 1.0 + 1e-9
# Cells a side of the midpoint rule that a rectangle's rule is compared with.
_FINE = 48
_PIECE = 512


@dataclass(frozen=True, eq=False)
class Rule:
    """A block as weighted points.

    Attributes
    ----------
    nodes : (m, 2)
        In the coordinates of the samples.
    weights : (m,)
        Positive, of sum 1.
    error : float
        Bound on the prior deviation of the block's average minus the sum, in the target's units.
    spread : float
        Bound on the error of the sum for a product of two coordinates, without anisotropy: 0 for a rule that is exact.
    area : float
    """

    nodes: FloatArray
    weights: FloatArray
    error: float
    spread: float
    area: float


@dataclass(frozen=True, eq=False)
class _Cells:
    """Cells of a midpoint rule: corners (m, c, 2), of which the last may repeat; centroids; areas."""

    corners: FloatArray
    centroids: FloatArray
    areas: FloatArray

    @property
    def weights(self) -> FloatArray:
        return np.asarray(self.areas / self.areas.sum())


def rectangle(bounds: tuple[float, float, float, float], variogram: Variogram, order: int = 8) -> Rule:
    """Return the rule of a rectangle (west, east, south, north): Gauss-Legendre nodes, `order` a side."""
    west, east, south, north = bounds
    if not (all(map(math.isfinite, bounds)) and west < east and south < north):
        raise InputError(f"a block is (west, east, south, north) with west < east and south < north; got {bounds}")
    points, weights = np.polynomial.legendre.leggauss(order)
    x = 0.5 * (west + east) + 0.5 * (east - west) * points
    y = 0.5 * (south + north) + 0.5 * (north - south) * points
    nodes = np.column_stack([np.repeat(x, order), np.tile(y, order)])
    share = np.outer(weights, weights).reshape(-1) / 4.0
    fine = _lattice(bounds, max(_FINE, 2 * order))
    error = _midpoint_error(fine, variogram) + _difference(
        np.vstack([nodes, fine.centroids]), np.concatenate([share, -fine.weights]), variogram
    )
    return Rule(nodes, share, error, 0.0, (east - west) * (north - south))


def polygon(shape: Any, variogram: Variogram, order: int = 8, name: str = "") -> Rule:
    """Return the midpoint rule of a shapely polygon, or several: a lattice of `order` cells a side, clipped.

    Raises `InputError` for a polygon without area, or one that crosses itself; `name` is said then.
    """
    import shapely

    if not shapely.is_valid(shape):
        raise InputError(
            f"the polygon {name} is not valid: {shapely.is_valid_reason(shape)}. Mend it by shapely.make_valid"
        )
    if not shape.area > 0.0:
        raise InputError(f"the polygon {name} has no area; expected a polygon, got {shape.geom_type}")
    west, south, east, north = shape.bounds
    side = max(east - west, north - south) / order
    columns, rows = max(1, math.ceil((east - west) / side)), max(1, math.ceil((north - south) / side))
    pieces = []
    for row in range(rows):
        for column in range(columns):
            box = shapely.box(
                west + column * (east - west) / columns,
                south + row * (north - south) / rows,
                west + (column + 1) * (east - west) / columns,
                south + (row + 1) * (north - south) / rows,
            )
            piece = shape.intersection(box)
            parts = getattr(piece, "geoms", [piece])
            pieces += [part for part in parts if part.geom_type == "Polygon" and part.area > 1e-12 * box.area]
    most = max(len(piece.exterior.coords) for piece in pieces)
    corners = np.empty((len(pieces), most, 2))
    for index, piece in enumerate(pieces):
        ring = np.asarray(piece.exterior.coords)
        corners[index, : len(ring)], corners[index, len(ring) :] = ring, ring[-1]
    centroids = np.array([piece.centroid.coords[0] for piece in pieces])
    cells = _Cells(corners, centroids, np.array([piece.area for piece in pieces]))
    radius = _radii(cells, variogram.anisotropy(2))
    error = _midpoint_error(cells, variogram)
    return Rule(centroids, cells.weights, error, float(cells.weights @ radius**2), float(shape.area))


def _lattice(bounds: tuple[float, float, float, float], order: int) -> _Cells:
    west, east, south, north = bounds
    width, height = (east - west) / order, (north - south) / order
    x = west + width * (np.arange(order) + 0.5)
    y = south + height * (np.arange(order) + 0.5)
    centroids = np.column_stack([np.repeat(x, order), np.tile(y, order)])
    steps = 0.5 * np.array([(-width, -height), (width, -height), (width, height), (-width, height)])
    return _Cells(centroids[:, None, :] + steps, centroids, np.full(order**2, width * height))


def _radii(cells: _Cells, matrix: FloatArray) -> FloatArray:
    """Return the circumradii of cells about their centroids, in coordinates mapped by a matrix."""
    steps = (cells.corners - cells.centroids[:, None, :]) @ matrix.T
    return np.asarray(np.sqrt((steps**2).sum(axis=2)).max(axis=1))


def _midpoint_error(cells: _Cells, variogram: Variogram) -> float:
    """Return eps of a midpoint rule."""
    matrix = variogram.anisotropy(2)
    radius, centres = _radii(cells, matrix), cells.centroids @ matrix.T
    weights, rise = cells.weights, variogram.field_variance - variogram.covariance(radius)
    fourth = _fourth_derivatives(variogram)
    total = 0.0
    for start in range(0, len(weights), _PIECE):
        rows = slice(start, start + _PIECE)
        distance = np.sqrt(((centres[rows, None, :] - centres[None, :, :]) ** 2).sum(axis=2))
        reach = radius[rows, None] + radius[None, :]
        bound = 2.0 * np.sqrt(rise[rows, None] * rise[None, :])
        apart = distance > reach
        low, high = (distance - reach)[apart], (distance + reach)[apart]
        product = (radius[rows, None] ** 2 * radius[None, :] ** 2)[apart] / 4.0
        bound[apart] = np.minimum(bound[apart], product * fourth(low, high))
        total += float(weights[rows] @ bound @ weights)
    return math.sqrt(total) * _ROUNDINGS


def _difference(nodes: FloatArray, weights: FloatArray, variogram: Variogram) -> float:
    """Return sqrt(u'Cu) of weights u on nodes, outward of its roundings."""
    centres = nodes @ variogram.anisotropy(2).T
    total, size = 0.0, 0.0
    for start in range(0, len(weights), _PIECE):
        rows = slice(start, start + _PIECE)
        distance = np.sqrt(((centres[rows, None, :] - centres[None, :, :]) ** 2).sum(axis=2))
        covariance = variogram.covariance(distance)
        total += float(weights[rows] @ covariance @ weights)
        size += float(np.abs(weights[rows]) @ covariance @ np.abs(weights))
    return math.sqrt(max(total, 0.0) + 1e-12 * size)


def _fourth_derivatives(variogram: Variogram) -> Callable[[FloatArray, FloatArray], FloatArray]:
    """Return a bound on |D_u^2 D_v^2 c| over distances from `low` to `high`."""

    def bound(low: FloatArray, high: FloatArray) -> FloatArray:
        total = np.zeros_like(low)
        for one in (variogram, *variogram.also):
            second, third, fourth = _derivatives(one, low)
            part = 16.0 * high**4 * fourth + 48.0 * high**2 * third + 12.0 * second
            if one.model in _POLYNOMIALS:
                # Beyond the range c is zero; across it the third derivative may jump.
                part = np.where(low >= one.range, 0.0, np.where(high > one.range, np.inf, part))
            total += one.psill * part
        return np.asarray(total * _ROUNDINGS)

    return bound


# Coefficients of u^0, u^1, ... of models with a range.
_POLYNOMIALS = {
    "spherical": (1.0, -1.5, 0.0, 0.5),
    "cubic": (1.0, 0.0, -7.0, 8.75, 0.0, -3.5, 0.0, 0.75),
    "wendland": (1.0, 0.0, -10.0, 20.0, -15.0, 4.0),
}
_SMOOTHNESS = {"exponential": 0.5, "matern32": 1.5, "matern52": 2.5}


def _derivatives(variogram: Variogram, low: FloatArray) -> list[FloatArray]:
    """Return bounds on |f''|, |f'''|, |f''''| of rho = f(s), s = r^2, at all distances from `low` on (within a range).

    Functions that are valid in all dimensions are completely monotone in s (Schoenberg), so that every derivative is
    largest at the least distance. Powers of r have derivatives that fall in size from the second on, or are zero.
    """
    length = variogram.range
    s = np.maximum(low, 1e-300) ** 2
    if variogram.model in _SMOOTHNESS:
        # With z = kappa r, the derivative of z^nu K_nu(z) by s is -(kappa^2 / 2) z^(nu - 1) K_(nu - 1)(z).
        nu = _SMOOTHNESS[variogram.model]
        kappa = math.sqrt(2.0 * nu) / length
        z = kappa * np.sqrt(s)
        scale = 2.0 ** (1.0 - nu) / math.gamma(nu)
        return [
            np.asarray(scale * (0.5 * kappa**2) ** k * z ** (nu - k) * scipy.special.kv(abs(nu - k), z))
            for k in (2, 3, 4)
        ]
    if variogram.model == "gaussian":
        return [np.asarray(length ** (-2.0 * k) * np.exp(-s / length**2)) for k in (2, 3, 4)]
    if variogram.model == "rational":
        assert variogram.alpha is not None
        a, unit = variogram.alpha, 2.0 * variogram.alpha * length**2
        rising = [scipy.special.poch(a, k) for k in (2, 3, 4)]
        return [np.asarray(c / unit**k * (1.0 + s / unit) ** (-a - k)) for c, k in zip(rising, (2, 3, 4), strict=True)]
    results = []
    for k in (2, 3, 4):
        total = np.zeros_like(s)
        for power, coefficient in enumerate(_POLYNOMIALS[variogram.model]):
            factor = math.prod(0.5 * power - step for step in range(k))
            if coefficient and factor:
                # A power above the k-th derivative's order rises: it is largest at the range.
                exponent = 0.5 * power - k
                at = s if exponent <= 0.0 else np.full_like(s, length**2)
                total += abs(coefficient * factor) * length ** (-power) * at**exponent
        results.append(total)
    return results
