"""Draws of the prior field at samples and cells, with a proven bound on the error of their covariance.

All covariances here are relative to the partial sill: c(0) = 1.

    circulant   Samples and cells are nodes of one lattice. Its covariance is embedded in a periodic one, whose
                eigenvalues are a Fourier transform (Dietrich and Newsam 1997, Wood and Chan 1994). Negative eigenvalues
                are set to zero; the covariance is then off by at most the sum of their sizes over their number.
    fourier     f0(x) = sum_j sqrt(w_j) (a_j cos + b_j sin)(w_j'x) on equispaced frequencies of the periods P. By
                Poisson's summation the sum over all frequencies is sum_n c(x + n P), so that the covariance is off by
                at most the images n != 0 and the weights that were left out (Barnett, Greengard and Rachh 2022).
    features    Random frequencies, redrawn for every field (Rahimi and Recht 2007): the covariance is exact over
                fields, and each field is Gaussian given its frequencies.
    cholesky    Jointly, from a factor of the covariance of all points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import scipy.fft
import scipy.special

from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel
from dkgp.kriging.samples import groups_of
from dkgp.kriging.variogram import FORMS, Variogram
from dkgp.models.prediction.pathwise import MOST_JOINT_SAMPLES, draw_prior_functions

# Points of a periodic embedding, frequencies of a Fourier series, and doublings of an embedding.
MOST_NODES, MOST_MODES, DOUBLINGS = 2**26, 2**22, 4
# Frequencies of an axis, on each side.
_MOST_HIGHEST = 1536
# Half the phase that the fastest wave turns within a box of interpolation, and Chebyshev nodes along its side.
_PHASE, _ORDER = 4.0, 18
# Relative rounding of spectral densities and of their sums, and that of transforms.
_ROUNDING, _TRANSFORM = 1e-12, 1e-14
# Nodes at which a series is evaluated together.
_SLAB = 2**22
# Share of the spacing within which a sample is at a node.
AT_NODE = 1e-6


class Prior(Protocol):
    """Independent draws of the prior field, at samples and at cells."""

    method: str
    # The covariance of every pair of points is within this of the variogram's, relative to the partial sill.
    error: float

    def draw(self, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return a field at the samples (n,) and at the cells (m,)."""


# ------------------------------------------------------------------------------------------------------------ circulant


@dataclass(frozen=True)
class Lattice:
    """Nodes in rows and columns.

    Attributes
    ----------
    spacing : (float, float)
        Of rows (north) and columns (east).
    shape : (int, int)
        Rows, columns.
    samples, cells : (n, 2), (m, 2)
        Row and column of each sample and cell.
    """

    spacing: tuple[float, float]
    shape: tuple[int, int]
    samples: IntArray
    cells: IntArray


class CirculantPrior:
    """Fields on a lattice by circulant embedding."""

    method = "circulant"

    def __init__(self, variogram: Variogram, lattice: Lattice) -> None:
        self._lattice = lattice
        for doubling in range(DOUBLINGS + 1):
            shape = _embedded(lattice.shape, doubling)
            if math.prod(shape) > MOST_NODES:
                if doubling:
                    break
                raise InputError(
                    f"the lattice of {lattice.shape[0]:,} x {lattice.shape[1]:,} nodes needs an embedding of "
                    f"{math.prod(shape):,}, and at most {MOST_NODES:,} are taken. Take a smaller region, or a wider "
                    "spacing"
                )
            values = _eigenvalues(variogram, lattice.spacing, shape)
            negative = float(-values[values < 0.0].sum()) / math.prod(shape)
            self.shape, self.error = shape, negative + _TRANSFORM
            # Half of the transform is enough for real fields.
            self._roots = np.sqrt(np.maximum(values[:, : shape[1] // 2 + 1], 0.0))
            if negative <= _TRANSFORM:
                break

    def draw(self, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return a field at the samples and at the cells."""
        waves = scipy.fft.rfft2(rng.standard_normal(self.shape), workers=-1)
        waves *= self._roots
        field = scipy.fft.irfft2(waves, s=self.shape, overwrite_x=True, workers=-1)
        samples, cells = self._lattice.samples, self._lattice.cells
        return field[samples[:, 0], samples[:, 1]], field[cells[:, 0], cells[:, 1]]


def _embedded(shape: tuple[int, int], doubling: int) -> tuple[int, int]:
    """Return the shape of an embedding; an axis of one node needs none."""
    first, second = (1 if size == 1 else scipy.fft.next_fast_len(2 * size << doubling, real=True) for size in shape)
    return first, second


def _eigenvalues(variogram: Variogram, spacing: tuple[float, float], shape: tuple[int, int]) -> FloatArray:
    """Return the eigenvalues of the periodic covariance of a lattice: as its shape."""
    north, east = (
        step * np.where(np.arange(size) > size // 2, np.arange(size) - size, np.arange(size))
        for step, size in zip(spacing, shape, strict=True)
    )
    matrix = variogram.anisotropy(2)
    squares = np.zeros(shape)
    for row in matrix:
        squares += (row[0] * east[None, :] + row[1] * north[:, None]) ** 2
    covariance = variogram.covariance(np.sqrt(squares)) / variogram.field_variance
    # The lag of half a period has two signs: the real part is that of their mean. No pair of nodes has this lag.
    return np.ascontiguousarray(scipy.fft.fft2(covariance, overwrite_x=True, workers=-1).real)


# -------------------------------------------------------------------------------------------------------------- fourier


@dataclass(frozen=True)
class Series:
    """Frequencies of a Fourier series.

    Attributes
    ----------
    periods : (d,)
    highest : tuple of d ints
        Frequencies of an axis are 2 pi j / P for |j| up to this.
    weights : (highest_0 + 1, 2 highest_1 + 1, ...)
        Of the half with j_0 >= 0; with j_0 > 0 they stand for two frequencies.
    error : float
        Uniform bound on the error of the covariance.
    """

    periods: FloatArray
    highest: tuple[int, ...]
    weights: FloatArray
    error: float

    @property
    def modes(self) -> int:
        """Number of frequencies."""
        return self.weights.size


def series_for(variogram: Variogram, extent: FloatArray, error: float) -> Series:
    """Return the smallest series whose covariance is proven within an error, or the best one of `MOST_MODES`.

    Parameters
    ----------
    variogram : Variogram
    extent : (d,)
        Sides of the box that all points lie in.
    error : float
        Relative to the partial sill.

    Raises
    ------
    InputError
        A rational variogram whose images have no finite sum.
    """
    d = len(extent)
    parts = (variogram, *variogram.also)
    for one in parts:
        if one.model == "rational" and 2.0 * (one.alpha or 0.0) <= d:
            raise InputError(
                f"a rational variogram with alpha={one.alpha:g} has no Fourier series in {d} dimensions; alpha must "
                f"exceed {d / 2:g}. Take `method` features"
            )
    gap = _gap(variogram, extent, 0.2 * error)
    periods = extent + gap
    images = _images(variogram, extent, periods)
    matrix = variogram.anisotropy(d)
    reach = np.linalg.norm(matrix, axis=0)
    shortest = min(one.range for one in parts)
    cut, best = 4.0 / shortest, None
    while True:
        highest = tuple(int(j) for j in np.maximum(1, np.ceil(cut * reach * periods / (2.0 * math.pi))))
        modes = (highest[0] + 1) * math.prod(2 * j + 1 for j in highest[1:])
        if modes > MOST_MODES or max(highest) > _MOST_HIGHEST:
            break
        weights = _weights(variogram, periods, highest, matrix)
        total = float(weights.sum())
        off = 2.0 * images + max(1.0 - total, 0.0) + _interpolation(d) * total
        off += _ROUNDING * (1.0 + total) + 4e-15 * weights.size * float(weights.max())
        if best is None or off < best.error:
            best = Series(periods, highest, weights, off)
        if best.error <= error:
            break
        cut *= 1.4
    if best is None:
        raise InputError(
            f"the points span {', '.join(f'{side / shortest:.3g}' for side in extent)} ranges, too many for a Fourier "
            "series; take `method` features, or a smaller region"
        )
    return best


def _gap(variogram: Variogram, extent: FloatArray, error: float) -> float:
    """Return the distance of a box from its images at which these count for less than an error."""
    low, high = 0.0, min(one.range for one in (variogram, *variogram.also))
    while _images(variogram, extent, extent + high) > error and high < 1e4 * (float(extent.max()) + variogram.range):
        low, high = high, 2.0 * high
    for _ in range(12):
        middle = 0.5 * (low + high)
        if _images(variogram, extent, extent + middle) > error:
            low = middle
        else:
            high = middle
    return high


def _images(variogram: Variogram, extent: FloatArray, periods: FloatArray) -> float:
    """Return a bound on sum_{n != 0} c(x + n P) over all |x_i| <= extent_i."""
    d = len(extent)
    nearby = (12, 6, 4, 2)[d - 1]
    shifts = np.stack(np.meshgrid(*[np.arange(-nearby, nearby + 1)] * d, indexing="ij"), axis=-1).reshape(-1, d)
    shifts = shifts[np.any(shifts != 0, axis=1)]
    apart = np.maximum(np.abs(shifts) * periods - extent, 0.0)
    # Removing the anisotropy shortens no distance by more than this.
    least = float(np.linalg.svd(variogram.anisotropy(d), compute_uv=False).min()) * (1.0 - 1e-12)
    total = float(variogram.covariance(least * np.sqrt((apart**2).sum(axis=1))).sum())
    for one in (variogram, *variogram.also):
        total += one.psill * _far_images(one, least * (periods - extent), least * periods, nearby)
    return total / variogram.field_variance * (1.0 + 1e-9)


def _far_images(variogram: Variogram, gaps: FloatArray, periods: FloatArray, nearby: int) -> float:
    """Return a bound on the images beyond `nearby` periods, of correlation."""
    d, form = len(gaps), FORMS[variogram.model]
    gap, step = float(gaps.min()), float(periods.min())
    if gap <= 0.0:
        return math.inf
    shells = np.arange(nearby + 1.0, nearby + 202.0)
    counts = (2.0 * shells + 1.0) ** d - (2.0 * shells - 1.0) ** d
    if variogram.model == "rational":
        # c(r) <= (r / b)^(-2 a), at distances of s gaps at least.
        a = variogram.alpha or 0.0
        b = variogram.range * math.sqrt(2.0 * a)
        return float(2.0 * d * 3.0 ** (d - 1) * (gap / b) ** (-2.0 * a) * nearby ** (d - 2.0 * a) / (2.0 * a - d))
    distances = (shells - 1.0) * step + gap
    terms = counts * form.correlation(distances / variogram.range, variogram.alpha)
    # Logarithms of the terms are concave: from the last on they fall at least as fast as there.
    last = terms[-1]
    rest = 0.0 if last == 0.0 else math.inf if last >= terms[-2] else last / (1.0 - last / terms[-2])
    return float(terms.sum()) + rest


def _weights(variogram: Variogram, periods: FloatArray, highest: tuple[int, ...], matrix: FloatArray) -> FloatArray:
    """Return the weights of the frequencies, c^(w) / prod(P): see `Series.weights`."""
    axes = [
        2.0 * math.pi / period * (np.arange(0 if axis == 0 else -top, top + 1))
        for axis, (period, top) in enumerate(zip(periods, highest, strict=True))
    ]
    inverse = np.linalg.inv(matrix).T
    squares = np.zeros([len(axis) for axis in axes])
    grids = np.meshgrid(*axes, indexing="ij", sparse=True)
    for row in inverse:
        squares += sum(factor * grid for factor, grid in zip(row, grids, strict=True)) ** 2
    lengths = np.sqrt(squares)
    share = 1.0 / (abs(float(np.linalg.det(matrix))) * float(np.prod(periods)) * variogram.field_variance)
    total = np.zeros_like(lengths)
    for one in (variogram, *variogram.also):
        total += one.psill * share * _density(one, len(periods))(lengths)
    total[1:] *= 2.0
    return np.maximum(total, 0.0)


_SMOOTHNESS = {"exponential": 0.5, "matern32": 1.5, "matern52": 2.5}


def _density(variogram: Variogram, d: int) -> Callable[[FloatArray], FloatArray]:
    """Return c^(w), the integral of c(|x|) exp(-i w'x) over x in d dimensions, of |w|, for a sill of 1."""
    length = variogram.range
    if variogram.model in _SMOOTHNESS:
        nu = _SMOOTHNESS[variogram.model]
        rate = 2.0 * nu / length**2
        log = d * math.log(2.0) + 0.5 * d * math.log(math.pi) + nu * math.log(rate)
        log += float(scipy.special.gammaln(nu + 0.5 * d) - scipy.special.gammaln(nu))
        return lambda w: np.asarray(np.exp(log - (nu + 0.5 * d) * np.log(rate + w * w)))
    if variogram.model == "gaussian":
        return lambda w: np.asarray((math.pi * length**2) ** (0.5 * d) * np.exp(-0.25 * (w * length) ** 2))
    if variogram.model == "rational":
        return lambda w: _rational_density(w, d, float(variogram.alpha or 0.0), length)
    if FORMS[variogram.model].dimensions is None:
        raise InputError(f"a {variogram.model} variogram has no known spectrum; take `method` features or cholesky")
    return lambda w: _compact_density(w, d, variogram)


def _rational_density(w: FloatArray, d: int, a: float, length: float) -> FloatArray:
    b, order = length * math.sqrt(2.0 * a), a - 0.5 * d
    scale = 2.0 * math.pi ** (0.5 * d) / math.gamma(a) * b**d
    z = np.maximum(w * b, 1e-100)
    with np.errstate(over="ignore", invalid="ignore"):
        values = (0.5 * z) ** order * scipy.special.kv(order, z)
    return np.asarray(scale * np.where(z < 1e-6, 0.5 * math.gamma(order), values))


def _compact_density(w: FloatArray, d: int, variogram: Variogram) -> FloatArray:
    """Return the spectral density of a correlation that is a polynomial up to its range, by quadrature.

    With N nodes Gauss' rule is off by at most exp(0.59 w - 2 N) times a moderate constant (the integrand is entire),
    which is below exp(-55) here.
    """
    length, form = variogram.range, FORMS[variogram.model]
    flat = (w * length).reshape(-1)
    count = math.ceil(0.3 * float(flat.max(initial=0.0))) + 30
    nodes, weights = np.polynomial.legendre.leggauss(count)
    r = 0.5 * (nodes + 1.0)
    factors = 0.5 * weights * form.correlation(r, None) * r ** (d - 1) * length**d
    surface = (2.0, 2.0 * math.pi, 4.0 * math.pi)[d - 1]
    wave = (np.cos, scipy.special.j0, lambda x: np.sinc(x / math.pi))[d - 1]
    result = np.empty_like(flat)
    rows = max(1, 2**22 // count)
    for start in range(0, len(flat), rows):
        result[start : start + rows] = wave(np.multiply.outer(flat[start : start + rows], r)) @ factors
    return np.asarray(surface * result.reshape(w.shape))


def _interpolation(d: int) -> float:
    """Return a bound on the error of a covariance by Chebyshev interpolation in boxes, relative to its variance.

    The interpolant of exp(i w x) in q nodes on [-h, h] is off by at most (w h)^q / (2^(q - 1) q!).
    """
    one = _PHASE**_ORDER / (2.0 ** (_ORDER - 1) * math.factorial(_ORDER))
    lebesgue = 2.0 / math.pi * math.log(_ORDER) + 1.0
    off = sum(one * lebesgue**axis for axis in range(d))
    return off * (2.0 + off)


class FourierPrior:
    """Fields that are Fourier series of equispaced frequencies, at points anywhere in a box."""

    method = "fourier"

    def __init__(self, series: Series, samples: FloatArray, cells: FloatArray) -> None:
        self.series, self.error = series, series.error
        self._samples, self._cells = samples, cells
        self._low = np.minimum(samples.min(axis=0), cells.min(axis=0))
        extent = np.maximum(samples.max(axis=0), cells.max(axis=0)) - self._low
        steps = 2.0 * math.pi / series.periods
        fastest = steps * np.array(series.highest)
        self._boxes = np.maximum(1, np.ceil(fastest * extent / (2.0 * _PHASE))).astype(np.int64)
        # A box is wider than a rounding of its points.
        self._half = np.maximum(extent / (2.0 * self._boxes), 1e-9 / fastest) * (1.0 + 1e-12)
        self._roots = np.sqrt(series.weights)
        self._nodes = np.polynomial.chebyshev.chebpts1(_ORDER)
        table = np.polynomial.chebyshev.chebvander(self._nodes, _ORDER - 1) * (2.0 / _ORDER)
        table[:, 0] *= 0.5
        self._table = table.T

    @cached_property
    def _waves(self) -> list[FloatArray]:
        """exp(i w x) of each axis' frequencies at its nodes, from the lower corner: (boxes x q, frequencies)."""
        waves = []
        for axis, top in enumerate(self.series.highest):
            centres = self._half[axis] * (2.0 * np.arange(self._boxes[axis]) + 1.0)
            x = (centres[:, None] + self._half[axis] * self._nodes).reshape(-1)
            j = np.arange(0 if axis == 0 else -top, top + 1)
            waves.append(np.exp(2j * math.pi / self.series.periods[axis] * np.multiply.outer(x, j)))
        return waves

    @cached_property
    def _places(self) -> list[tuple[IntArray, IntArray, IntArray, FloatArray]]:
        return [self._located(places) for places in (self._samples, self._cells)]

    def _located(self, places: FloatArray) -> tuple[IntArray, IntArray, IntArray, FloatArray]:
        """Return the order of points by box, occupied boxes (b, d), their first points, and points within -1..1."""
        box = np.clip(((places - self._low) / (2.0 * self._half)).astype(np.int64), 0, self._boxes - 1)
        within = (places - self._low - self._half * (2 * box + 1)) / self._half
        number = np.ravel_multi_index(tuple(box.T), tuple(self._boxes))
        order = np.argsort(number, kind="stable")
        _, first = np.unique(number[order], return_index=True)
        return order, box[order][first], np.append(first, len(order)), within[order]

    def draw(self, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return a field at the samples and at the cells."""
        first, second = rng.standard_normal((2, *self._roots.shape))
        coefficients = (first - 1j * second) * self._roots
        sizes = [len(self._samples), len(self._cells)]
        results = [np.empty(size) for size in sizes]
        per_box = _ORDER * int(np.prod(self._boxes[1:] * _ORDER))
        step = max(1, _SLAB // per_box)
        for start in range(0, int(self._boxes[0]), step):
            stop = min(start + step, int(self._boxes[0]))
            if not any(((boxes[:, 0] >= start) & (boxes[:, 0] < stop)).any() for _, boxes, _, _ in self._places):
                continue
            nodes = self._at_nodes(coefficients, start, stop)
            for result, located in zip(results, self._places, strict=True):
                self._interpolate(nodes, start, stop, located, result)
        return results[0], results[1]

    def _at_nodes(self, coefficients: FloatArray, start: int, stop: int) -> FloatArray:
        """Return the field at the nodes of a slab of boxes: (rows, nodes of the other axes ...)."""
        part = np.tensordot(self._waves[0][start * _ORDER : stop * _ORDER], coefficients, axes=1)
        if part.ndim == 1:
            return np.ascontiguousarray(part.real)
        for waves in self._waves[1:-1]:
            part = np.moveaxis(np.tensordot(part, waves, axes=(1, 1)), -1, 1)
        last = self._waves[-1]
        return np.asarray(part.real @ last.real.T - part.imag @ last.imag.T)

    def _interpolate(
        self,
        nodes: FloatArray,
        start: int,
        stop: int,
        located: tuple[IntArray, IntArray, IntArray, FloatArray],
        result: FloatArray,
    ) -> None:
        """Evaluate the field at the points of a slab's boxes."""
        order, boxes, first, within = located
        for index in np.flatnonzero((boxes[:, 0] >= start) & (boxes[:, 0] < stop)):
            rows = slice(first[index], first[index + 1])
            place = boxes[index].copy()
            place[0] -= start
            values = nodes[tuple(slice(box * _ORDER, (box + 1) * _ORDER) for box in place)]
            weights = [
                np.polynomial.chebyshev.chebvander(column, _ORDER - 1) @ self._table for column in within[rows].T
            ]
            sums = weights[0] @ values.reshape(_ORDER, -1)
            for axis in weights[1:]:
                sums = np.einsum("pq,pqr->pr", axis, sums.reshape(len(axis), _ORDER, -1))
            result[order[rows]] = sums[:, 0]


# -------------------------------------------------------------------------------------------------- features, cholesky


class FeaturePrior:
    """Fields of random frequencies, redrawn for every field."""

    method = "features"
    error = math.nan

    def __init__(self, kernel: Kernel, samples: FloatArray, cells: FloatArray) -> None:
        self._kernel, self._samples, self._cells = kernel, samples, cells
        if draw_prior_functions(kernel, samples.shape[1], 1, np.random.default_rng(0), frequencies=1) is None:
            raise InputError(f"the spectrum of the kernel {kernel.type_name} is not known; take `method` cholesky")

    def draw(self, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return a field at the samples and at the cells."""
        functions = draw_prior_functions(self._kernel, self._samples.shape[1], 1, rng)
        assert functions is not None
        return functions(self._samples)[:, 0], functions(self._cells)[:, 0]


class JointPrior:
    """Fields by a factor of the covariance of all places."""

    method = "cholesky"

    def __init__(self, kernel: Kernel, samples: FloatArray, cells: FloatArray) -> None:
        first, group = groups_of(np.concatenate([samples, cells]))
        if len(first) > MOST_JOINT_SAMPLES:
            raise InputError(
                f"`method` cholesky takes at most {MOST_JOINT_SAMPLES:,} samples and cells together; got "
                f"{len(first):,}. Take `method` auto"
            )
        self._samples, self._cells = group[: len(samples)], group[len(samples) :]
        places = np.concatenate([samples, cells])[first]
        covariance = np.asarray(kernel(places, places))
        for jitter in (0.0, 1e-14, 1e-12, 1e-10, 1e-8):
            try:
                self._lower = np.linalg.cholesky(covariance + jitter * np.eye(len(places)))
            except np.linalg.LinAlgError:
                continue
            self.error = jitter + len(places) * 1e-15
            return
        raise NumericalError("the covariance of samples and cells is not positive definite; take fewer cells")

    def draw(self, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return a field at the samples and at the cells."""
        field = self._lower @ rng.standard_normal(len(self._lower))
        return field[self._samples], field[self._cells]


def box_of(places: Sequence[FloatArray]) -> FloatArray:
    """Return the sides of the box that all places lie in: (d,)."""
    low = np.min([part.min(axis=0) for part in places], axis=0)
    high = np.max([part.max(axis=0) for part in places], axis=0)
    return np.asarray(high - low)
