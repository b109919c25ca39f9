"""Averages of a field over blocks as weighted sums of its values, with a proven bound on the sum's error.

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
The cells of a rectangle are a lattice: sums over pairs of cells are sums over their offsets.

So the variance of f_B lies between 2 Cov(f_B, sum) - Var(sum) and eps^2 more; covariances of f_B with points are exact
(`outlines`).

Roundings: a node that is off by d adds sqrt(2 gamma(d)), and weights that are off by W in sum add W times the field's
deviation. Cells of a clipped polygon are off by the rounding of their vertices along their boundaries.
`docs/proofs.md` has the proofs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
from numpy.typing import NDArray

from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.kriging.variogram import Variogram
from dkgp.models.rounding import EPS

# Above the roundings of all formulas here, whose terms are positive.
_ROUNDINGS = 1.0 + 1e-9
# Cells a side of the midpoint rule that a rectangle's rule is compared with.
_FINE = 64
# Entries of a covariance matrix that are evaluated together.
_PIECE = 2**20
# Every correlation falls by less than this for a step of one range.
_STEEPEST = 3.0
# Roundings of a coordinate on its way to the kernel.
_MOVES = 32.0
# Clipped cells with a smaller share of their box are left out: their centroids are rounding.
_LEAST_SHARE = 1e-9


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
        Bound on the error of the sum for a product of two coordinates about the block's centre, without anisotropy: 0
        for a rule that is exact.
    area : float
    slip : float
        Bound on the error of the sum for a coordinate, from rounding, without anisotropy.
    rings : tuple of (k, 2)
        Outline of the block in the coordinates of the samples: outer rings counter-clockwise, holes clockwise. Without
        one the weighted sum itself is predicted.
    sides : (2,), optional
        Width and height of a rectangle.
    shape : optional
        The shapely polygon.
    """

    nodes: FloatArray
    weights: FloatArray
    error: float
    spread: float
    area: float
    slip: float = 0.0
    rings: tuple[FloatArray, ...] = ()
    sides: tuple[float, float] | None = None
    shape: Any = None


def rectangle(bounds: tuple[float, float, float, float], variogram: Variogram, order: int = 8) -> Rule:
    """Return the rule of a rectangle (west, east, south, north): Gauss-Legendre nodes, `order` a side."""
    return moved_rectangle(bounds, variogram, order)


def moved_rectangle(
    bounds: tuple[float, float, float, float], variogram: Variogram, order: int, like: Rule | None = None
) -> Rule:
    """Return the rule of a rectangle; its error is that of `like`, a rule of this order and size at another place."""
    west, east, south, north = bounds
    if not (all(map(math.isfinite, bounds)) and west < east and south < north):
        raise InputError(f"a block is (west, east, south, north) with west < east and south < north; got {bounds}")
    points, weights = np.polynomial.legendre.leggauss(order)
    size = np.array([east - west, north - south])
    steps = 0.5 * size * np.column_stack([np.repeat(points, order), np.tile(points, order)])
    share = np.outer(weights, weights).reshape(-1) / 4.0
    matrix = variogram.anisotropy(2)
    half = float(np.linalg.norm(np.abs(matrix) @ size)) / 2.0
    moved = _moved(bounds, matrix)
    if like is None:
        error = _rectangle_error(steps @ matrix.T, share, matrix * size, variogram, half)
        error = _capped(error + step(moved, variogram), variogram)
    else:
        error = _capped(like.error + step(moved, variogram), variogram)
    # One node is exact for linear functions only.
    spread = half**2 * _ROUNDINGS if order == 1 else 0.0
    centre = np.array([0.5 * (west + east), 0.5 * (south + north)])
    ring = np.array([(west, south), (east, south), (east, north), (west, north)])
    sides = float(size[0]), float(size[1])
    return Rule(centre + steps, share, error, spread, float(size.prod()), moved, (ring,), sides)


def polygon(shape: Any, variogram: Variogram, order: int = 8, name: str = "") -> Rule:
    """Return the midpoint rule of a shapely polygon, or several: a lattice of `order` cells a side, clipped.

    Raises `InputError` with `name` for another geometry, a polygon without area, or one that crosses itself.
    """
    import shapely

    kind = getattr(shape, "geom_type", type(shape).__name__)
    if kind not in ("Polygon", "MultiPolygon"):
        raise InputError(f"the block {name} is a {kind}; expected a polygon")
    if not shapely.is_valid(shape):
        raise InputError(
            f"the polygon {name} is not valid: {shapely.is_valid_reason(shape)}. Mend it by shapely.make_valid"
        )
    area = float(shape.area)
    if not area > 0.0:
        raise InputError(f"the polygon {name} has no area; expected a polygon with an interior")
    cells = Cells.of(shape, order, variogram, name)
    west, south, east, north = shape.bounds
    matrix, astray, shift = variogram.anisotropy(2), cells.astray, cells.shift
    nodes = np.concatenate([cells.full, cells.clipped])
    weights = np.concatenate([np.full(len(cells.full), cells.share), cells.shares])
    radius = np.concatenate([np.full(len(cells.full), cells.radius), cells.radii])
    extent = float(np.linalg.norm(matrix @ np.array([east - west, north - south])))
    extent = max(extent, float(np.linalg.norm(matrix @ np.array([east - west, south - north]))))
    error = _midpoint_error(nodes, weights, radius, variogram)
    error += step(shift, variogram) + 2.0 * astray * math.sqrt(variogram.field_variance)
    return Rule(
        cells.places,
        weights,
        _capped(error, variogram),
        float(weights @ radius**2) * _ROUNDINGS + 2.0 * astray * extent**2,
        area,
        shift + 2.0 * astray * extent,
        cells.rings,
        shape=shape,
    )


def _rings(shape: Any) -> tuple[FloatArray, ...]:
    """Return the rings of a polygon, or several: outer ones counter-clockwise, holes clockwise."""
    import shapely

    rings = []
    for part in shapely.get_parts(shapely.force_2d(shape)):
        for number, ring in enumerate((part.exterior, *part.interiors)):
            corners = shapely.get_coordinates(ring)[:-1]
            rings.append(corners if shapely.is_ccw(ring) == (number == 0) else corners[::-1])
    return tuple(rings)


@dataclass(frozen=True, eq=False)
class Cells:
    """A polygon's cells on a lattice: whole boxes, and boxes that its outline cuts.

    Attributes
    ----------
    origin : (2,)
        South-western corner of the lattice. Places without anisotropy are relative to it.
    steps : (2, 2)
        Columns: a box's sides, without anisotropy.
    inside : (rows, columns) bool
        Boxes within the polygon.
    full, clipped : (k, 2), (m, 2)
        Centroids of both kinds of cells, without anisotropy.
    share, radius : float
        Weight and circumradius of a whole box.
    shares, radii : (m,)
        Those of clipped cells.
    shift, astray : float
        Bounds on the displacement of a node by roundings, and on the weights that are off.
    rings : tuple of (k, 2)
    """

    origin: FloatArray
    steps: FloatArray
    inside: NDArray[np.bool_]
    full: FloatArray
    clipped: FloatArray
    share: float
    radius: float
    shares: FloatArray
    radii: FloatArray
    shift: float
    astray: float
    rings: tuple[FloatArray, ...]
    places: FloatArray

    @classmethod
    def of(cls, shape: Any, order: int, variogram: Variogram, name: str = "") -> Cells:
        """Cut a polygon by a lattice of `order` boxes along its longer side."""
        import shapely

        area, (west, south, east, north) = float(shape.area), shape.bounds
        inside, pieces, (width, height) = _clipped(shapely.force_2d(shape), order)
        areas, box, k = shapely.area(pieces), width * height, int(inside.sum())
        kept = areas > _LEAST_SHARE * box
        if not kept.any() and not k:
            raise InputError(
                f"the polygon {name} has an area of {area:g}, too little for its extent of {east - west:g} by "
                f"{north - south:g}; expected a polygon with an interior"
            )
        dropped, perimeters = float(areas[~kept].sum()), float(shapely.length(pieces[kept]).sum())
        pieces, areas = pieces[kept], areas[kept]
        centroids = shapely.get_coordinates(shapely.centroid(pieces)).reshape(-1, 2)
        matrix, origin = variogram.anisotropy(2), np.array([west, south])
        moved = _moved((west, east, south, north), matrix)
        corners, piece = shapely.get_coordinates(pieces, return_index=True)
        radii = np.zeros(len(pieces))
        np.maximum.at(radii, piece, np.linalg.norm((corners - centroids[piece]) @ matrix.T, axis=1))
        whole, count = k * box + float(areas.sum()), k + len(pieces)
        # Shares of the area that the cells gain or lose by roundings of their vertices, and by those left out.
        plain = _moved((west, east, south, north), np.eye(2))
        astray = 2.0 * (plain * (perimeters + 2.0 * k * (width + height)) + dropped) / area + 1e-13 * count
        # A centroid is off in proportion to the roundings of its cell's area.
        shift = moved + 64.0 * EPS * box * math.sqrt(box) * count / area * float(np.linalg.norm(matrix))
        rows, columns = np.nonzero(inside)
        middles = (np.column_stack([columns, rows]) + 0.5) * np.array([width, height])
        diagonals = np.linalg.norm(np.array([(width, height), (width, -height)]) @ matrix.T, axis=1)
        return cls(
            origin,
            matrix * np.array([width, height]),
            inside,
            middles @ matrix.T,
            (centroids - origin) @ matrix.T,
            box / whole,
            0.5 * float(diagonals.max()) * _ROUNDINGS + moved,
            areas / whole,
            radii * _ROUNDINGS + moved,
            shift,
            astray,
            _rings(shape),
            np.concatenate([origin + middles, centroids]),
        )


def _clipped(shape: Any, order: int) -> tuple[Any, Any, tuple[float, float]]:
    """Return which boxes of a lattice lie in a polygon, (rows, columns), the parts in others, and a box's sides."""
    import shapely

    west, south, east, north = shape.bounds
    side = max(east - west, north - south) / order
    columns, rows = (max(1, math.ceil(length / side)) for length in (east - west, north - south))
    x, y = np.linspace(west, east, columns + 1), np.linspace(south, north, rows + 1)
    left, low = (corner.reshape(-1) for corner in np.meshgrid(x[:-1], y[:-1]))
    right, high = (corner.reshape(-1) for corner in np.meshgrid(x[1:], y[1:]))
    boxes = shapely.box(left, low, right, high)
    shapely.prepare(shape)
    inside = shapely.contains_properly(shape, boxes)
    cut = boxes[~inside & shapely.intersects(shape, boxes)]
    # Parts of a collection may be collections of polygons.
    parts = shapely.get_parts(shapely.get_parts(shapely.intersection(shape, cut)))
    pieces = parts[shapely.get_type_id(parts) == shapely.GeometryType.POLYGON]
    return inside.reshape(rows, columns), pieces, ((east - west) / columns, (north - south) / rows)


def _moved(bounds: tuple[float, float, float, float], matrix: FloatArray) -> float:
    """Return a bound on the displacement of a node by roundings, without anisotropy."""
    return _MOVES * EPS * max(map(abs, bounds)) * float(np.linalg.norm(matrix))


def step(distance: float, variogram: Variogram) -> float:
    """Return a bound on the prior deviation of the field's change over a distance."""
    return math.sqrt(2.0 * float(rise(np.array([distance]), variogram)[0]))


def _capped(error: float, variogram: Variogram) -> float:
    """Return an error that is no more than twice the field's deviation, which no error of averages exceeds."""
    return min(error * _ROUNDINGS, 2.0 * math.sqrt(variogram.field_variance) * _ROUNDINGS)


def rise(distance: FloatArray, variogram: Variogram) -> FloatArray:
    """Return upper bounds on the semivariogram without nugget."""
    total = variogram.field_variance
    return np.asarray(np.maximum(total - variogram.covariance(distance), 0.0) + 16.0 * EPS * total)


def _rectangle_error(
    nodes: FloatArray, weights: FloatArray, sides: FloatArray, variogram: Variogram, half: float
) -> float:
    """Return the error of a rule on a parallelogram about the origin, whose sides are the columns of `sides`.

    `half` bounds the size of its points.
    """
    order = max(_FINE, 2 * math.isqrt(len(weights)))
    lattice, square = lattice_variance(sides, order, variogram)
    fine, steps = math.sqrt(square), sides / order
    own = _form(nodes, weights, nodes, weights, variogram)
    cross = _form(nodes, weights, lattice_centres(steps, order), np.full(order**2, 1.0 / order**2), variogram)
    # Roundings of sums, and of distances.
    slack = 1e-12 * (own + 2.0 * cross + lattice) + 4.0 * changes(32.0 * EPS * half, variogram)
    return (fine + math.sqrt(max(own - 2.0 * cross + lattice, 0.0) + slack)) * _ROUNDINGS


def lattice_variance(sides: FloatArray, order: int, variogram: Variogram) -> tuple[float, float]:
    """Return the prior variance of the midpoint rule on a parallelogram, and a bound on that of its error.

    The columns of `sides` are the sides, without anisotropy; `order` cells lie along each.
    """
    steps = sides / order
    index = np.arange(1 - order, order)
    i, j = (number.reshape(-1) for number in np.meshgrid(index, index))
    pairs = ((order - np.abs(i)) * (order - np.abs(j))) / float(order) ** 4
    distance = np.linalg.norm(np.column_stack([i, j]) @ steps.T, axis=1)
    radius = 0.5 * max(np.linalg.norm(steps.sum(axis=1)), np.linalg.norm(steps[:, 0] - steps[:, 1])) * _ROUNDINGS
    size = np.array([radius])
    missed = float(pairs @ kappa(distance, (size, size), 2.0 * rise(size, variogram), variogram))
    return float(pairs @ variogram.covariance(distance)), missed * _ROUNDINGS


def lattice_centres(steps: FloatArray, order: int) -> FloatArray:
    """Return the centres of a parallelogram's cells about the origin, row by row: (order^2, 2)."""
    place = (np.arange(order) + 0.5) - 0.5 * order
    a, b = (number.reshape(-1) for number in np.meshgrid(place, place))
    return np.asarray(np.column_stack([a, b]) @ steps.T)


def changes(distance: float, variogram: Variogram) -> float:
    """Return a bound on the change of a covariance where the distance of two points changes."""
    total = 0.0
    for one in (variogram, *variogram.also):
        # A stable model with an exponent below 1 is infinitely steep at zero: |u^a - v^a| <= |u - v|^a.
        power = min(float(one.alpha or 1.0), 1.0) if one.model == "stable" else 1.0
        total += one.psill * max(_STEEPEST * distance / one.range, (distance / one.range) ** power)
    return total


def _midpoint_error(centres: FloatArray, weights: FloatArray, radius: FloatArray, variogram: Variogram) -> float:
    """Return eps of a midpoint rule with centroids (m, 2) without anisotropy."""
    total, rows_together = 0.0, max(1, min(_PIECE // len(weights), 128))
    root = np.sqrt(2.0 * rise(radius, variogram))
    for start in range(0, len(weights), rows_together):
        # Pairs within a piece, and twice those of its cells with all later ones.
        rows, later = slice(start, start + rows_together), slice(start, None)
        distance = np.sqrt(((centres[rows, None, :] - centres[None, later, :]) ** 2).sum(axis=2))
        sizes = radius[rows, None], radius[None, later]
        bound = kappa(distance, sizes, root[rows, None] * root[None, later], variogram)
        share = 2.0 * weights[later]
        share[: len(bound)] = weights[rows]
        total += float(weights[rows] @ bound @ share)
    return math.sqrt(total) * _ROUNDINGS


def kappa(
    distance: FloatArray, radii: tuple[FloatArray, FloatArray], most: FloatArray, variogram: Variogram
) -> FloatArray:
    """Return bounds on the covariances of the errors of pairs of cells.

    From distances of centroids, radii, and the bounds by Cauchy and Schwarz, which cells that touch keep.
    """
    bound = np.array(np.broadcast_to(most, distance.shape))
    reach = radii[0] + radii[1]
    apart = distance > reach
    low, high = (distance - reach)[apart] * (1.0 - 1e-9), (distance + reach)[apart]
    product = np.broadcast_to(radii[0] ** 2 * radii[1] ** 2, distance.shape)[apart] / 4.0
    bound[apart] = np.minimum(bound[apart], product * fourth_derivatives(variogram, low, high))
    return bound


def _form(
    left: FloatArray, left_weights: FloatArray, right: FloatArray, right_weights: FloatArray, variogram: Variogram
) -> float:
    """Return the covariance of two sums of the field, at points without anisotropy."""
    total, rows_together = 0.0, max(1, _PIECE // len(right))
    for start in range(0, len(left), rows_together):
        rows = slice(start, start + rows_together)
        distance = np.sqrt(((left[rows, None, :] - right[None, :, :]) ** 2).sum(axis=2))
        total += float(left_weights[rows] @ variogram.covariance(distance) @ right_weights)
    return total


def fourth_derivatives(variogram: Variogram, low: FloatArray, high: FloatArray) -> FloatArray:
    """Return bounds on |D_u^2 D_v^2 c| over distances from `low` to `high`, for unit vectors u and v."""
    total = np.zeros_like(low)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        for one in (variogram, *variogram.also):
            second, third, fourth = _derivatives(one, low)
            part = 16.0 * high**4 * fourth + 48.0 * high**2 * third + 12.0 * second
            if one.model in POLYNOMIALS:
                # Beyond the range c is zero; across it the third derivative may jump.
                part = np.where(low >= one.range, 0.0, np.where(high > one.range, np.inf, part))
            total += one.psill * part
    # Overflow and its quotients bound nothing.
    return np.where(np.isnan(total), np.inf, total * _ROUNDINGS)


# Coefficients of u^0, u^1, ... of models with a range.
POLYNOMIALS = {
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
        z = kappa * np.maximum(low, 1e-300)
        scale = 2.0 ** (1.0 - nu) / math.gamma(nu) * np.sqrt(0.5 * math.pi / z) * np.exp(-z)
        return [
            np.asarray(scale * (0.5 * kappa**2) ** k * z ** (nu - k) * _bessel_factor(abs(nu - k), z))
            for k in (2, 3, 4)
        ]
    if variogram.model == "gaussian":
        return [np.asarray(length ** (-2.0 * k) * np.exp(-s / length**2)) for k in (2, 3, 4)]
    if variogram.model == "rational":
        assert variogram.alpha is not None
        a, unit = variogram.alpha, 2.0 * variogram.alpha * length**2
        base = 1.0 + s / unit
        power = base**-a
        rising = [scipy.special.poch(a, k) for k in (2, 3, 4)]
        return [np.asarray(c * power / (unit * base) ** k) for c, k in zip(rising, (2, 3, 4), strict=True)]
    if variogram.model == "stable":
        assert variogram.alpha is not None
        # (-1)^k s^k f^(k) = exp(-w) times a polynomial of w = (s / l^2)^p, whose coefficients are not negative.
        p = 0.5 * variogram.alpha
        w, terms, derivatives = (s / length**2) ** p, np.array([1.0]), []
        for k in range(4):
            terms = np.append(terms * (k - p * np.arange(k + 1)), 0.0) + np.append(0.0, p * terms)
            derivatives.append(np.polynomial.polynomial.polyval(w, terms) * np.exp(-w) / s ** (k + 1))
        return derivatives[1:]
    results = []
    for k in (2, 3, 4):
        total = np.zeros_like(s)
        for degree, coefficient in enumerate(POLYNOMIALS[variogram.model]):
            factor = math.prod(0.5 * degree - step for step in range(k))
            if coefficient and factor:
                # A power above the k-th derivative's order rises: it is largest at the range.
                exponent = 0.5 * degree - k
                at = s if exponent <= 0.0 else np.full_like(s, length**2)
                total += abs(coefficient * factor) * length ** float(-degree) * at**exponent
        results.append(total)
    return results


def _bessel_factor(order: float, z: FloatArray) -> FloatArray:
    """Return K_order(z) / (sqrt(pi / 2z) exp(-z)), for an order of 1/2, 3/2, 5/2 or 7/2."""
    n = round(order - 0.5)
    terms = [math.factorial(n + k) / (math.factorial(k) * math.factorial(n - k)) for k in range(n + 1)]
    return np.asarray(sum(term * (0.5 / z) ** k for k, term in enumerate(terms)))
