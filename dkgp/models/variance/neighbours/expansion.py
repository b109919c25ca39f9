"""Interpolation of a kernel on a box by tensor products of Chebyshev points, with proven errors.

A profile f(s) = int exp(-t s) dmu(t), mu >= 0, is analytic for complex s with Re s > 0, and |f(s)| <= f(Re s) there. So
Bernstein's theorem bounds the interpolation error of the kernel in one point, for all positions of the other one in a
second box. The proof is in docs/proofs.md ("By neighbours").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

import numpy as np

from dkgp.errors import InputError
from dkgp.kernels import Kernel
from dkgp.kernels.terms import Term, Terms, terms_of
from dkgp.models.rounding import UNIT
from dkgp.operators.base import FloatArray

MOST_FEATURES = 3
# Sums of half axes of the ellipses that are tried; the least bound counts.
ELLIPSES = np.geomspace(1.15, 40.0, 26)
# |1 - exp(-z)| <= DIFFERENCE (1 - exp(-|z|)) for Re z >= 0: 2 / (1 - 1/e), rounded up.
DIFFERENCE = 3.17
# More than the roundings of the bounds themselves.
MARGIN = 1e-9


@dataclass(frozen=True)
class Distances:
    """The terms of a kernel over its active features, at most three.

    Attributes
    ----------
    kernel : Kernel
    terms : Terms
    features : tuple of int
        Columns of the inputs that the kernel reads.
    """

    kernel: Kernel
    terms: Terms
    features: tuple[int, ...]

    @classmethod
    def of(cls, kernel: Kernel) -> Distances:
        """Return the terms of a kernel.

        Raises `InputError` for more than three features and for kernels without a proven expansion.
        """
        try:
            terms = terms_of(kernel)
        except InputError as error:
            raise InputError(
                f"variances by neighbours are not for this kernel: {error}. Take `way` auto or iterative"
            ) from None
        for term in terms.terms:
            if not term.profile.mixture:
                raise InputError(
                    "variances by neighbours take squared exponential, Matern and rational quadratic kernels and their "
                    f"sums; got {kernel.type_name!r}. Take `way` auto or iterative"
                )
        features = tuple(sorted({feature for term in terms.terms for feature in term.features}))
        if not 1 <= len(features) <= MOST_FEATURES:
            raise InputError(
                f"variances by neighbours take kernels of one to {MOST_FEATURES} features; this one reads "
                f"{len(features)}"
            )
        return cls(kernel, terms, features)

    @cached_property
    def scales(self) -> FloatArray:
        """Factor on each active feature within each term: (terms, k)."""
        table = np.zeros((len(self.terms.terms), len(self.features)))
        for row, term in zip(table, self.terms.terms, strict=True):
            for feature, scale in zip(term.features, term.scale, strict=True):
                row[self.features.index(feature)] = scale
        return table

    @cached_property
    def metric(self) -> FloatArray:
        """Factor on each active feature for the choice of neighbours: that of the shortest term, (k,)."""
        return np.asarray(self.scales.max(axis=0))

    def errors(self, centres: FloatArray, halves: FloatArray, others: Boxes, order: int) -> FloatArray:
        """Bound the error of interpolation at `order` points a feature, for unit weight: (c,).

        The kernel is interpolated in one point, within boxes (c, k); the other point lies anywhere in the boxes
        `others`, (c, k) or (k,). Infinite where nothing is proven.
        """
        offset = np.abs(centres - others.centre)
        total = np.zeros(len(offset))
        for term, scale in zip(self.terms.terms, self.scales, strict=True):
            size = np.broadcast_to(halves, offset.shape) * scale
            total += abs(term.amplitude) * _term_errors(term, offset * scale, size, others.half * scale, order)
        return np.asarray(total * (1.0 + MARGIN))


@dataclass(frozen=True)
class Boxes:
    """Boxes with their sides along the features: centres and half widths, (c, k) or (k,)."""

    centre: FloatArray
    half: FloatArray

    @classmethod
    def around(cls, low: FloatArray, high: FloatArray) -> Boxes:
        """Boxes that contain all between two corners, roundings of their own numbers included."""
        slack = 4.0 * UNIT * (np.abs(low) + np.abs(high))
        return cls(0.5 * (low + high), 0.5 * (high - low) * (1.0 + 8.0 * UNIT) + slack + np.finfo(np.float64).tiny)


def _term_errors(term: Term, offset: FloatArray, half: FloatArray, other: FloatArray, order: int) -> FloatArray:
    """Bound the error of one term of unit amplitude, in the term's scaled coordinates: (c,)."""
    value, parameter = term.profile.value, term.parameter
    assert value is not None
    width = offset.shape[1]
    least = np.maximum(offset - other, 0.0)  # from the box's centre to the other box, in each feature
    most = offset + other
    near, far = np.maximum(least - half, 0.0) ** 2, (most + half) ** 2
    rho = ELLIPSES[None, :]
    bounds = np.zeros((len(offset), width))
    for j in range(width):
        long, short = half[:, j, None] * (rho + 1.0 / rho) / 2.0, half[:, j, None] * (rho - 1.0 / rho) / 2.0
        away, squares = least[:, j, None], long**2 + short**2
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            # (away - long cos)^2 - short^2 sin^2 is least at cos = away long / squares, or at cos = 1.
            inner = short**2 * (away**2 / squares - 1.0)
            lowest = np.where(away * long < squares, inner, (away - long) ** 2)
        others = near.sum(axis=1) - near[:, j]
        real = np.maximum(others, 0.0)[:, None] * (1.0 - MARGIN) + lowest
        real -= MARGIN * (np.abs(lowest) + short**2)
        size = (far.sum(axis=1) - far[:, j])[:, None] + (most[:, j, None] + long) ** 2 + short**2
        with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
            plain = value(np.maximum(real, 0.0), parameter)
            differences = DIFFERENCE * (1.0 - value(size * (1.0 + MARGIN), parameter) + 16.0 * UNIT)
            bound = 4.0 * np.minimum(plain, differences) * rho ** (1.0 - order) / (rho - 1.0)
        bounds[:, j] = np.where(np.isfinite(bound) & (real > 0.0), bound, np.inf).min(axis=1)
    bounds = -np.sort(-bounds, axis=1)
    return np.asarray(bounds @ lebesgue(order) ** np.arange(width) if width > 1 else bounds[:, 0])


def lebesgue(order: int) -> float:
    """Bound on the Lebesgue constant of so many Chebyshev points (Rivlin 1974)."""
    return 1.0 + 2.0 / math.pi * math.log(order)


@lru_cache
def _table(order: int) -> tuple[FloatArray, FloatArray]:
    """The Chebyshev points (q,), and the matrix (q, q) from values of T_0 .. T_(q-1) to Lagrange's polynomials."""
    odd = 2 * np.arange(order) + 1
    angles = (np.arange(order)[:, None] * odd[None, :]) % (4 * order)
    values = np.cos(math.pi * angles / (2 * order)) * (2.0 / order)
    values[0] = 1.0 / order
    return np.cos(math.pi * odd / (2 * order)), values


@lru_cache
def _grid(order: int, width: int) -> FloatArray:
    """Tensor product of the Chebyshev points: (q^k, k), the last feature fastest."""
    return np.array(list(product(_table(order)[0], repeat=width)))


def nodes(box: Boxes, order: int) -> FloatArray:
    """Chebyshev points of a box: (q^k, k); of boxes (c, k): (c q^k, k)."""
    grid = _grid(order, box.centre.shape[-1])
    points = box.centre[..., None, :] + box.half[..., None, :] * grid
    return np.asarray(points.reshape(-1, box.centre.shape[-1]))


def basis(points: FloatArray, box: Boxes, order: int) -> FloatArray:
    """Lagrange's polynomials of a box's nodes at points (n, k) within it: (n, q^k)."""
    places = np.clip((points - box.centre) / box.half, -1.0, 1.0)
    values = np.empty((order, *places.shape))
    values[0], values[1] = 1.0, places
    for degree in range(2, order):
        values[degree] = 2.0 * places * values[degree - 1] - values[degree - 2]
    table = _table(order)[1]
    result = values[:, :, 0].T @ table
    for column in range(1, places.shape[1]):
        result = (result[:, :, None] * (values[:, :, column].T @ table)[:, None, :]).reshape(len(points), -1)
    return np.asarray(result)


def basis_error(order: int, width: int) -> float:
    """Bound on the rounding of an entry of `basis`, none of which exceeds 2^(k/2) in size."""
    one = 16.0 * (order * order + 2.0) * UNIT
    return float(1.01 * width * 2.0 ** (width / 2.0) * (one + 2.0 * UNIT))
