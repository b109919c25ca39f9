"""Covariances of a block's average with points, as integrals along the block's outline.

For c = rho(r) let G(r) = r^-2 int_0^r rho(v) v dv. The field (y - x) G(|y - x|) has the divergence rho(|y - x|), so

    int_B rho(|y - x|) dy = sum over edges of d int_t0^t1 G(sqrt(d^2 + t^2)) dt,

d the signed distance of x from the edge's line, positive where x lies on the inner side, and t along the line from the
foot of x. Holes run the other way round. The integral along an edge takes Gauss-Legendre rules of m nodes. Where the
integrand is at most M on the ellipse of size p about an interval of half-length H, they are off by at most

    8 H M p^(1 - 2m) / (p - 1).

A completely monotone function f(s) of s = r^2 is at most f(Re s) in the right half-plane, and so is G, at most 1/2.

- Edge at a distance of D: p = 1 + D / H, for then Re s >= 0 on the ellipse.
- Edge nearby: t = |d| sinh v with the integrand d |d| G(|d| cosh v) cosh v; Re s >= 0 for |Im v| <= pi / 4.

Models with a range are polynomials of r within it, bounded by their coefficients. An edge that leaves the range has its
integral in closed form; beyond the range d int G dt is an angle. `docs/proofs.md` has the lemma.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from dkgp.data.types import FloatArray
from dkgp.kriging.quadrature import POLYNOMIALS
from dkgp.kriging.variogram import Variogram
from dkgp.models.rounding import EPS

# Pairs of an edge and a point that are computed together.
_PAIRS = 2**16
# Nodes of edges whose p is at least a number; edges nearer have panels of half-length 1/2 at most, with so many nodes.
# Their errors are near the roundings: the noise's root divides them in variances.
_RULES = ((1000.0, 3), (50.0, 5), (8.0, 9), (4.0, 13))
_NODES, _PANEL = 15, 0.5
# Roundings of the value of a pair.
_ROUNDINGS = 64.0 * EPS
# Lines through a point, but for rounding, have no part in its integral.
_THROUGH = 1e-13
# Terms of the series of G below 1: the next one is below a rounding.
_TERMS = 22


@dataclass(frozen=True, eq=False)
class Outline:
    """A polygon's edges from their starts to their ends, (m, 2) each, its inside on their left.

    `off` bounds the displacement of its corners.
    """

    start: FloatArray
    end: FloatArray
    off: float

    @classmethod
    def of(cls, rings: Sequence[FloatArray], off: float) -> Outline:
        """Return the outline of rings (k, 2), closed or not: outer ones counter-clockwise, holes clockwise."""
        return cls(np.concatenate(rings), np.concatenate([np.roll(ring, -1, axis=0) for ring in rings]), off)

    @property
    def area(self) -> tuple[float, float]:
        """The area, and a bound on its rounding in proportion."""
        a, b = self.start - self.start[0], self.end - self.start[0]
        terms = 0.5 * (a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0])
        sizes = 0.5 * (np.abs(a[:, 0] * b[:, 1]) + np.abs(a[:, 1] * b[:, 0]))
        area = float(terms.sum())
        return area, (len(a) + 8.0) * EPS * float(sizes.sum()) / area

    @property
    def astray(self) -> float:
        """Bound on the sum of the weights by which an average over displaced corners differs."""
        return 4.0 * self.off * float(np.linalg.norm(self.end - self.start, axis=1).sum()) / self.area[0] * (1.0 + 1e-9)


def covariances(
    outline: Outline, points: FloatArray, variogram: Variogram, unit: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the covariances of the block's average with the field at points: (n,), as both bounds on their errors.

    The first bound holds for the block with the corners as they are stored. The second one is on the change where they
    are displaced. Coordinates have the unit `unit` of the variogram's ranges and no anisotropy; covariances are in
    proportion to the field's variance.
    """
    area, rounding = outline.area
    middle = 0.5 * (outline.start.min(axis=0) + outline.start.max(axis=0))
    radius = float(np.linalg.norm(outline.start - middle, axis=1).max())
    values, errors, most = np.zeros(len(points)), np.zeros(len(points)), np.zeros(len(points))
    together = max(1, _PAIRS // len(outline.start))
    for first in range(0, len(points), together):
        some = points[first : first + together]
        away = np.maximum(np.linalg.norm(some - middle, axis=1) - radius - outline.off, 0.0) * (1.0 - 1e-9)
        here = slice(first, first + together)
        for one in (variogram, *variogram.also):
            length, share = one.range / unit, one.psill / variogram.field_variance
            reached = np.arange(len(some)) if one.model not in POLYNOMIALS else np.flatnonzero(away < length)
            integral, error = _integrals(outline.start / length, outline.end / length, some[reached] / length, one)
            values[here][reached] += share * length**2 / area * integral
            errors[here][reached] += share * length**2 / area * error
        most[here] = variogram.covariance(away * unit) / variogram.field_variance
    errors += rounding * most + 16.0 * EPS * np.abs(values)
    # Displaced corners change the average by the part of the area that lies along the outline, at most.
    return values, errors * (1.0 + 1e-6), outline.astray * most * (1.0 + 1e-6)


def _integrals(start: FloatArray, end: FloatArray, points: FloatArray, one: Variogram) -> tuple[FloatArray, FloatArray]:
    """Return the integrals of the correlation over a polygon, and bounds on their errors; ranges are 1."""
    step = end - start
    length = np.linalg.norm(step, axis=1)
    edges = np.flatnonzero(length > 0.0)
    start, length = start[edges], length[edges, None]
    along = step[edges] / length
    x, y = (start[:, None, column] - points[None, :, column] for column in (0, 1))
    d = x * along[:, None, 1] - y * along[:, None, 0]
    low = x * along[:, None, 0] + y * along[:, None, 1]
    high = low + length
    half = np.broadcast_to(0.5 * length, d.shape)
    farthest = np.hypot(d, np.maximum(np.abs(low), np.abs(high)))
    size = 1.0 + np.hypot(d, np.clip(0.0, low, high)) * (1.0 - 1e-9) / half
    series = POLYNOMIALS.get(one.model)
    inner = np.full(d.shape, True) if series is None else farthest * (1.0 + 1e-12) < 1.0
    most = 0.5 if series is None else float(sum(abs(c) * 2.0**k / (k + 2) for k, c in enumerate(series)))
    result, error = np.zeros(d.shape), np.zeros(d.shape)
    waiting = np.full(d.shape, True)
    for least, count in _RULES:
        pairs_here = np.nonzero(waiting & inner & (size >= least))
        waiting[pairs_here] = False
        nodes, weights = np.polynomial.legendre.leggauss(count)
        foot, h = d[pairs_here], half[pairs_here]
        middle, total = low[pairs_here] + h, np.zeros(len(foot))
        for node, weight in zip(nodes, weights, strict=True):
            total += weight * _averages(one, np.sqrt(foot**2 + (middle + node * h) ** 2))
        result[pairs_here] = foot * h * total
        missed = 8.0 * most * least ** (1.0 - 2.0 * count) / (least - 1.0)
        error[pairs_here] = h * (missed * np.abs(foot) + _ROUNDINGS * farthest[pairs_here] * total)
    pairs_here = np.nonzero(waiting & inner)
    result[pairs_here], error[pairs_here] = _near(
        one, most, (d[pairs_here], low[pairs_here], high[pairs_here], farthest[pairs_here])
    )
    if series is not None:
        pairs_here = np.nonzero(~inner)
        result[pairs_here], error[pairs_here] = _closed(
            series, d[pairs_here], low[pairs_here], high[pairs_here], farthest[pairs_here]
        )
    return result.sum(axis=0), error.sum(axis=0) + len(edges) * EPS * np.abs(result).sum(axis=0)


def _near(one: Variogram, most: float, pairs: tuple[FloatArray, ...]) -> tuple[FloatArray, FloatArray]:
    """Return d int G dt of edges nearby, by t = |d| sinh v, and bounds on their errors; |G| is at most `most`.

    `pairs` are d, the ends of t, and the distance of the farther one.
    """
    d, low, high, farthest = pairs
    error = most * _ROUNDINGS * farthest * (high - low)
    through = np.abs(d) <= _THROUGH * farthest
    error[through] += most * np.abs(d[through]) * (high - low)[through]
    size = np.where(through, 1.0, np.abs(d))
    first, last = np.arcsinh(np.where(through, 0.0, low) / size), np.arcsinh(np.where(through, 0.0, high) / size)
    panels = np.ceil((last - first) / (2.0 * _PANEL)).astype(np.int64)
    pair = np.repeat(np.arange(len(d)), panels)
    number = np.arange(len(pair)) - np.repeat(np.cumsum(panels) - panels, panels)
    half = (0.5 * (last - first) / np.maximum(panels, 1))[pair]
    middle = first[pair] + (2.0 * number + 1.0) * half
    total, foot = np.zeros(len(pair)), size[pair]
    for node, weight in zip(*np.polynomial.legendre.leggauss(_NODES), strict=True):
        stretch = np.cosh(middle + node * half)
        total += weight * stretch * _averages(one, foot * stretch)
    total *= half
    # The ellipse about a panel reaches pi / 4 from the real line, and less than a panel's length beyond its ends.
    narrow = 0.25 * math.pi / _PANEL
    p = narrow + math.sqrt(narrow**2 + 1.0)
    beyond = math.exp(_PANEL * (math.sqrt(narrow**2 + 1.0) - 1.0))
    missed = 8.0 * _PANEL * most * beyond * p ** (1.0 - 2.0 * _NODES) / (p - 1.0)
    return d * size * np.bincount(pair, total, len(d)), error + missed * panels * np.abs(d) * farthest


def _closed(
    series: Sequence[float], d: FloatArray, low: FloatArray, high: FloatArray, farthest: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return d int G dt of a polynomial with the range 1, zero beyond it, and bounds on their errors."""
    reach = np.sqrt(np.maximum(1.0 - d * d, 0.0))
    a, b = np.clip(low, -reach, reach), np.clip(high, -reach, reach)
    size = np.abs(d)
    # Integrals of r^k: (k + 1) J_k = t r^k + k d^2 J_(k - 2).
    powers = []
    for t in (a, b):
        r = np.hypot(d, t)
        known = {-1: np.arcsinh(t / np.maximum(size, 1e-300)), 0: t}
        for k in range(1, len(series)):
            known[k] = (t * r**k + k * size**2 * known[k - 2]) / (k + 1.0)
        powers.append(known)
    total = np.zeros(len(d))
    for k, coefficient in enumerate(series):
        total += coefficient / (k + 2.0) * (powers[1][k] - powers[0][k])
    whole = sum(coefficient / (k + 2.0) for k, coefficient in enumerate(series))
    angle = np.arctan2(high, size) - np.arctan2(b, size) + np.arctan2(a, size) - np.arctan2(low, size)
    sizes = float(np.abs(series).sum())
    # Roundings of d count as far as the edge lies in the range.
    return d * total + whole * np.sign(d) * angle, _ROUNDINGS * sizes * (2.0 + farthest)


def _averages(one: Variogram, u: FloatArray) -> FloatArray:
    """Return G at distances u, in ranges."""
    if one.model in POLYNOMIALS:
        series = [coefficient / (k + 2.0) for k, coefficient in enumerate(POLYNOMIALS[one.model])]
        return np.asarray(np.polynomial.polynomial.polyval(u, series))
    if one.model in _MATERN:
        factor, constant, rest, start = _MATERN[one.model]
        a = factor * u
        b = np.maximum(a, 1.0)
        far = (constant - np.polynomial.polynomial.polyval(b, rest) * np.exp(-b)) / b**2
        small = np.flatnonzero(a < 1.0)
        far[small] = np.polynomial.polynomial.polyval(a[small], start)
        return np.asarray(far)
    square = np.maximum(u, 1e-150) ** 2
    if one.model == "stable":
        return _stable_averages(float(one.alpha or 0.0), u)
    if one.model == "gaussian":
        return np.asarray(-np.expm1(-square) / (2.0 * square))
    assert one.alpha is not None
    alpha, logarithm = one.alpha, np.log1p(square / (2.0 * one.alpha))
    if alpha == 1.0:
        return np.asarray(logarithm / square)
    return np.asarray(alpha * np.expm1((1.0 - alpha) * logarithm) / (1.0 - alpha) / square)


def _stable_averages(alpha: float, u: FloatArray) -> FloatArray:
    """Return G of exp(-u^alpha): its series in w = u^alpha up to 1, and the incomplete gamma function beyond."""
    w = u**alpha
    a, far = 2.0 / alpha, np.maximum(w, 1.0)
    result = scipy.special.gammainc(a, far) * scipy.special.gamma(a) / (alpha * np.maximum(u, 1.0) ** 2)
    small = np.flatnonzero(w < 1.0)
    start = [(-1.0) ** k / (math.factorial(k) * (2.0 + alpha * k)) for k in range(_TERMS)]
    result[small] = np.polynomial.polynomial.polyval(w[small], start)
    return np.asarray(result)


def _matern(nu: float, polynomial: Sequence[float]) -> tuple[float, float, list[float], list[float]]:
    """Return kappa, and G(a) = (constant - polynomial(a) exp(-a)) / a^2 with its series, of rho = P(a) exp(-a)."""
    # int_0^a x^j exp(-x) dx = j! (1 - sum_(i <= j) a^i / i! exp(-a)).
    constant = sum(c * math.factorial(k + 1) for k, c in enumerate(polynomial))
    rest = np.zeros(len(polynomial) + 1)
    for k, c in enumerate(polynomial):
        for i in range(k + 2):
            rest[i] += c * math.factorial(k + 1) / math.factorial(i)
    start = [
        sum(c * (-1.0) ** (k - j) / math.factorial(k - j) for j, c in enumerate(polynomial) if j <= k) / (k + 2.0)
        for k in range(_TERMS)
    ]
    return math.sqrt(2.0 * nu) if nu > 0.5 else 1.0, constant, rest.tolist(), start


_MATERN = {
    "exponential": _matern(0.5, (1.0,)),
    "matern32": _matern(1.5, (1.0, 1.0)),
    "matern52": _matern(2.5, (1.0, 1.0, 1.0 / 3.0)),
}
