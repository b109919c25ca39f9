"""Empirical variograms: half the mean squared difference of pairs, by distance, with robust estimators.

With q = z_a - z_b of the N pairs of a bin,

    matheron   mean(q^2) / 2
    cressie    mean(|q|^(1/2))^4 / (2 (0.457 + 0.494 / N + 0.045 / N^2))           Cressie and Hawkins 1980
    dowd       2.198 median(|q|)^2 / 2                                              Dowd 1984
    genton     (2.219 Q)^2 / 2,  Q the k-th smallest distance between two q,         Genton 1998
               k = C(floor(N / 2) + 1, 2)

All pairs are taken where they are few. Of more, a bin takes a random sample that is uniform over its pairs: points lie
in square cells, a candidate is a uniform pair of points from cells whose points may be a lag of the bin apart, and it
is taken if its lag is in the bin. The sampling error is the standard error against all pairs. It does not contain
the fluctuation of the field itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy
from numpy.typing import ArrayLike

from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError
from dkgp.estimators.inputs import numbers_of
from dkgp.kriging.choices import ESTIMATORS
from dkgp.kriging.space import Space

# Pairs that are all taken.
MOST_PAIRS = 20_000_000
BOOTSTRAPS = 200
# Differences that Genton's estimator and the bootstraps take, of more a part.
MOST_COMPARED = 2_000
# Differences that a bootstrap of Genton's estimator takes: it compares all pairs of them.
_MOST_RESAMPLED = 400
_ROWS = 512
VALUES, RESIDUALS = "values", "residuals of least squares"
_CANDIDATES = 250_000
# Cells along the largest lag of a bin, and pairs of cells.
_MOST_CELLS, _MOST_CELL_PAIRS = 16, 1_000_000
# Candidates without enough pairs after which a bin is given up.
_MOST_CANDIDATES = 40_000_000


@dataclass(frozen=True, eq=False)
class EmpiricalVariogram:
    """Semivariances by lag, of bins that have pairs.

    Attributes
    ----------
    edges : (b + 1,)
        Edges of the bins, in map units or km.
    lag : (b,)
        Mean distance of a bin's pairs; NaN without a pair.
    gamma : (b,)
        Semivariance.
    count : (b,)
        Pairs of the bin, estimated where they are sampled.
    used : (b,)
        Pairs that the semivariance was computed from.
    sampling_error : (b,)
        Standard error against all pairs; zero where all were taken. Pairs are sampled with replacement.
    variance : float
        Variance of the values, which a variogram reaches if their field is stationary.
    estimator : str
    direction : float, optional
        Degrees from east, counter-clockwise.
    unit : str
        Unit of the lags.
    of : str
        The quantity whose differences were taken: "values", or "residuals of least squares" about a drift.
    """

    edges: FloatArray
    lag: FloatArray
    gamma: FloatArray
    count: IntArray
    used: IntArray
    sampling_error: FloatArray
    variance: float
    estimator: str
    direction: float | None = None
    unit: str = ""
    of: str = VALUES

    def __repr__(self) -> str:
        unit = f" ({self.unit})" if self.unit else ""
        lines = [f"Semivariances of {self.of}, {self.estimator}", f"{f'lag{unit}':>12} {'gamma':>12} {'pairs':>12}"]
        rows = zip(self.lag, self.gamma, self.count, strict=True)
        return "\n".join([*lines, *(f"{lag:12.6g} {gamma:12.6g} {count:12,}" for lag, gamma, count in rows)])

    @property
    def known(self) -> Any:
        """True for bins with pairs: (b,)."""
        return self.used > 0

    def plot(self, path: str | Path, models: Any = (), title: str = "") -> None:
        """Draw the semivariances and models into a file; see `dkgp.kriging.plot_variogram`."""
        import dkgp.kriging as room

        room.plot_variogram(Path(path), self, models, title)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        columns = {
            name: [None if value != value else value for value in getattr(self, name).tolist()]
            for name in ("edges", "lag", "gamma", "count", "used", "sampling_error")
        }
        return {**columns, "variance": self.variance, "estimator": self.estimator, "direction": self.direction} | {
            "of": self.of
        }


def empirical_variogram(
    coordinates: Sequence[ArrayLike],
    data: ArrayLike,
    *,
    bins: Any = 15,
    max_lag: float | None = None,
    estimator: str = "matheron",
    direction: float | None = None,
    angle_tolerance: float = 22.5,
    bandwidth: float | None = None,
    pairs: int = 100_000,
    degree: int = 0,
    covariates: Any = None,
    crs: Any = None,
    metric: str = "auto",
    seed: int = 0,
) -> EmpiricalVariogram:
    """Estimate a variogram of samples.

    Parameters
    ----------
    coordinates, crs, metric
        As for `dkgp.kriging.Kriging`.
    data : array_like
        Values at the coordinates.
    bins : int or array_like, default 15
        Number of bins of one width, or their edges. A bin contains its lower edge.
    max_lag : float, optional
        Largest distance; by default a third of the diagonal of the samples' bounding box.
    estimator : {"matheron", "cressie", "dowd", "genton"}, default "matheron"
    direction : float, optional
        Take pairs along a direction alone: degrees from east, counter-clockwise, in the plane of the first two
        coordinates.
    angle_tolerance : float, default 22.5
        Degrees by which a pair's direction may differ.
    bandwidth : float, optional
        Largest distance of a pair from the line along the direction.
    pairs : int, default 100,000
        Pairs of a bin that are sampled where there are more than 20 million in all.
    degree : {0, 1, 2}, default 0
        Degree of a drift in the coordinates. The variogram is that of the residuals of ordinary least squares, which
        is biased downward at large lags.
    covariates : array_like, optional
        Covariates of the drift: (n,) or (n, c).
    seed : int, default 0
        The same seed gives the same bits.

    Returns
    -------
    EmpiricalVariogram

    Raises
    ------
    InputError
        Fewer than two samples, unknown names, or values out of range.
    """
    space = Space.of(coordinates, crs, metric=metric)
    places = space.places(coordinates)
    values = _checked(data, len(places))
    has_drift = bool(degree) or covariates is not None
    if has_drift:
        values = residuals(values, drift_columns(places, degree, covariates))
    if len(values) < 2:
        raise InputError(f"a variogram needs at least 2 samples; got {len(values)}")
    if estimator not in ESTIMATORS:
        raise InputError(f"`estimator` is one of {', '.join(ESTIMATORS)}; got {estimator!r}")
    if pairs < 100:
        raise InputError(f"`pairs` must be at least 100; got {pairs}")
    edges = _edges(bins, max_lag, places)
    within = _Cone.of(direction, angle_tolerance, bandwidth, space)
    is_sample = len(values) * (len(values) - 1) // 2 > MOST_PAIRS
    differences = _sampled if is_sample else _all_pairs
    columns: dict[str, list[float]] = {name: [] for name in ("lag", "gamma", "count", "used", "sampling_error")}
    for index, (lags, q, count) in enumerate(differences(places, values, edges, within, (pairs, seed))):
        rng = np.random.default_rng([seed, index, 1])
        columns["lag"].append(float(lags.mean()) if len(lags) else np.nan)
        columns["gamma"].append(_ESTIMATES[estimator](q, rng) if len(q) else np.nan)
        columns["count"].append(count)
        columns["used"].append(len(q))
        compared = estimator == "genton" and len(q) > MOST_COMPARED
        columns["sampling_error"].append(_sampling_error(estimator, q, is_sample or compared, rng))
    arrays = {name: np.array(values, dtype=np.float64) for name, values in columns.items()}
    return EmpiricalVariogram(
        edges,
        arrays["lag"],
        arrays["gamma"],
        arrays["count"].astype(np.int64),
        arrays["used"].astype(np.int64),
        arrays["sampling_error"],
        variance=float(values.var()),
        estimator=estimator,
        direction=direction,
        unit=space.unit,
        of=RESIDUALS if has_drift else VALUES,
    )


def drift_columns(places: FloatArray, degree: int = 0, covariates: Any = None) -> FloatArray:
    """Return the columns of a drift: one, monomials of places moved to [-1, 1], and covariates: (n, q).

    Raises `InputError`: another degree, or covariates of another number of samples or that are not finite.
    """
    if degree not in (0, 1, 2):
        raise InputError(f"`degree` of a drift is 0, 1 or 2; got {degree!r}")
    low, high = places.min(axis=0), places.max(axis=0)
    moved = (2.0 * places - low - high) / np.where(high > low, high - low, 1.0)
    k = moved.shape[1]
    products = [moved[:, i] * moved[:, j] for i in range(k) for j in range(i, k)] if degree == 2 else []
    columns = [np.ones(len(places)), *(moved.T if degree else []), *products]
    if covariates is not None:
        values = numbers_of(covariates, "`covariates`").reshape(len(np.atleast_1d(covariates)), -1)
        if len(values) != len(places) or not np.isfinite(values).all():
            raise InputError(
                f"`covariates` has {values.shape} values; expected finite ones for each of {len(places)} samples"
            )
        columns += list(values.T)
    return np.column_stack(columns)


def residuals(values: FloatArray, columns: FloatArray) -> FloatArray:
    """Return the residuals of ordinary least squares; `InputError` for columns that the samples do not determine."""
    scaled = columns / np.maximum(np.abs(columns).max(axis=0), 1e-300)
    solution, _, rank, _ = np.linalg.lstsq(scaled, values, rcond=None)
    if rank < columns.shape[1]:
        raise InputError(
            f"the drift has {columns.shape[1]} columns, and the samples determine {rank}; leave out the dependent ones"
        )
    return np.asarray(values - scaled @ solution)


@dataclass(frozen=True, eq=False)
class VariogramMap:
    """Semivariances by lag vector, in square cells around lag zero; the map is symmetric.

    Attributes
    ----------
    centres : (m,)
        Centres of the cells along an axis, whole multiples of the width, in map units.
    gamma : (m, m)
        Matheron's semivariance by north-south lag (rows) and east-west lag (columns); NaN without a pair.
    count : (m, m)
        Pairs of each cell.
    n_samples : int
        Samples whose pairs were taken: all, or a random part.
    of : str
        See `EmpiricalVariogram`.
    """

    centres: FloatArray
    gamma: FloatArray
    count: IntArray
    n_samples: int
    of: str = VALUES


def variogram_map(
    coordinates: Sequence[ArrayLike],
    data: ArrayLike,
    *,
    max_lag: float | None = None,
    cells: int = 10,
    degree: int = 0,
    covariates: Any = None,
    crs: Any = None,
    seed: int = 0,
) -> VariogramMap:
    """Estimate the variogram of lag vectors, which shows an anisotropy's axes.

    Parameters
    ----------
    coordinates, data, degree, covariates, crs
        As for `empirical_variogram`, in a plane.
    max_lag : float, optional
        Largest lag along an axis; by default a third of the diagonal of the samples' bounding box.
    cells : int, default 10
        Cells from lag zero to `max_lag`; the map has 2 `cells` + 1 in each direction.
    seed : int, default 0
        Of the random samples that are taken where all have more than 20 million pairs.

    Returns
    -------
    VariogramMap

    Raises
    ------
    InputError
        Coordinates that are not those of a plane, or values out of range.
    """
    space = Space.of(coordinates, crs)
    if space.metric != "plane" or space.dimensions != 2:
        raise InputError("a variogram map needs two coordinates of a plane; project longitude and latitude first")
    if int(cells) != cells or cells < 1:
        raise InputError(f"`cells` is a whole number of at least 1; got {cells!r}")
    places = space.places(coordinates)
    values = _checked(data, len(places))
    has_drift = bool(degree) or covariates is not None
    if has_drift:
        values = residuals(values, drift_columns(places, degree, covariates))
    most = int(np.sqrt(2.0 * MOST_PAIRS))
    if len(values) > most:
        part = np.sort(np.random.default_rng(seed).choice(len(values), most, replace=False))
        places, values = places[part], values[part]
    reach = float(_edges(1, max_lag, places)[-1])
    width, side = reach / cells, 2 * cells + 1
    count, total = np.zeros(side * side), np.zeros(side * side)
    for start in range(0, len(values), _ROWS):
        stop = min(start + _ROWS, len(values))
        # Pairs with all samples: both signs of every lag vector, and a sample with itself, whose difference is zero.
        cell = [np.rint((places[start:stop, None, axis] - places[None, :, axis]) / width) for axis in (0, 1)]
        inside = (np.abs(cell[0]) <= cells) & (np.abs(cell[1]) <= cells)
        inside[np.arange(stop - start), np.arange(start, stop)] = False
        at = ((cell[1] + cells) * side + cell[0] + cells)[inside].astype(np.int64)
        square = ((values[start:stop, None] - values[None, :]) ** 2)[inside]
        count += np.bincount(at, minlength=side * side)
        total += np.bincount(at, weights=square, minlength=side * side)
    gamma = np.where(count > 0, 0.5 * total / np.maximum(count, 1.0), np.nan).reshape(side, side)
    centres = np.asarray(width * np.arange(-cells, cells + 1), dtype=np.float64)
    of = RESIDUALS if has_drift else VALUES
    return VariogramMap(centres, gamma, count.astype(np.int64).reshape(side, side), len(values), of)


def _checked(data: ArrayLike, n: int) -> FloatArray:
    """Return finite values of n samples; `InputError` for others."""
    values = numbers_of(data, "data").reshape(-1)
    if len(values) != n:
        raise InputError(f"data has {len(values)} values; expected {n}, one for each sample")
    if not np.isfinite(values).all():
        raise InputError(f"data is not finite in {int((~np.isfinite(values)).sum())} rows; remove these samples")
    return values


# ------------------------------------------------------------------------------------------------------- which pairs


@dataclass(frozen=True)
class _Cone:
    """Pairs along a direction: all pairs without one."""

    unit: FloatArray | None
    cosine: float
    bandwidth: float

    @classmethod
    def of(cls, direction: float | None, tolerance: float, bandwidth: float | None, space: Space) -> _Cone:
        if direction is None:
            if bandwidth is not None:
                raise InputError("`bandwidth` belongs to a `direction`; give both")
            return cls(None, 0.0, np.inf)
        if space.metric != "plane" or space.dimensions < 2:
            raise InputError("directions are those of a plane; project the coordinates, or leave `direction` out")
        if not 0.0 < tolerance <= 90.0:
            raise InputError(f"`angle_tolerance` is above 0 and at most 90 degrees; got {tolerance:g}")
        if bandwidth is not None and not bandwidth > 0.0:
            raise InputError(f"`bandwidth` must be positive; got {bandwidth!r}")
        turn = np.radians(direction)
        along = np.array([np.cos(turn), np.sin(turn)])
        return cls(along, float(np.cos(np.radians(tolerance))), np.inf if bandwidth is None else bandwidth)

    def __call__(self, steps: FloatArray, lags: FloatArray) -> Any:
        """True for pairs, by their steps (m, k) and lags (m,)."""
        if self.unit is None:
            return np.ones(len(lags), dtype=bool)
        along = steps[:, 0] * self.unit[0] + steps[:, 1] * self.unit[1]
        # A relative tolerance of rounding keeps pairs whose angle is the tolerance.
        near = np.abs(along) >= lags * self.cosine * (1.0 - 1e-12)
        return near & (lags**2 - along**2 <= self.bandwidth**2 * (1.0 + 1e-12))


def _edges(bins: Any, max_lag: float | None, places: FloatArray) -> FloatArray:
    if np.ndim(bins) == 0:
        if int(bins) != bins or bins < 1:
            raise InputError(f"`bins` is a whole number of at least 1, or edges; got {bins!r}")
        most = float(np.linalg.norm(np.ptp(places, axis=0))) / 3.0 if max_lag is None else float(max_lag)
        if not (np.isfinite(most) and most > 0.0):
            raise InputError(f"`max_lag` must be positive and finite; got {most!r}")
        return np.linspace(0.0, most, int(bins) + 1)
    edges = np.asarray(bins, dtype=np.float64).reshape(-1)
    if max_lag is not None:
        raise InputError("`max_lag` is the last of the edges `bins`; leave it out")
    if len(edges) < 2 or not np.isfinite(edges).all() or edges[0] < 0.0 or (np.diff(edges) <= 0.0).any():
        raise InputError(f"the edges `bins` must rise from 0 or more; got {edges.tolist()}")
    return edges


_Pairs: TypeAlias = tuple[FloatArray, FloatArray, int]


def _all_pairs(
    places: FloatArray, values: FloatArray, edges: FloatArray, within: _Cone, how: tuple[int, int]
) -> list[_Pairs]:
    """Return lags, differences and the number of all pairs of each bin."""
    parts: list[list[tuple[FloatArray, FloatArray]]] = [[] for _ in edges[1:]]
    for start in range(0, len(values), _ROWS):
        distances = scipy.spatial.distance.cdist(places[start : start + _ROWS], places[start:])
        near = np.triu((distances >= edges[0]) & (distances < edges[-1]), 1)
        one, other = np.nonzero(near)
        length, one, other = distances[near], one + start, other + start
        if within.unit is not None:
            along = within(places[one] - places[other], length)
            length, one, other = length[along], one[along], other[along]
        bin_of = (np.searchsorted(edges, length, side="right") - 1).astype(np.uint16)
        # Of small integers a stable sort is one pass.
        order = np.argsort(bin_of, kind="stable")
        ends = np.cumsum(np.bincount(bin_of, minlength=len(parts)))[:-1]
        sorted_pairs = length[order], (values[one] - values[other])[order]
        for part, lags, q in zip(parts, *(np.split(column, ends) for column in sorted_pairs), strict=True):
            part.append((lags, q))
    joined = [[np.concatenate(columns) for columns in zip(*part, strict=True)] for part in parts]
    return [(lags, q, len(lags)) for lags, q in joined]


def _sampled(
    places: FloatArray, values: FloatArray, edges: FloatArray, within: _Cone, how: tuple[int, int]
) -> list[_Pairs]:
    """Return lags and differences of random pairs of each bin, and how many pairs it has about."""
    wanted, seed = how
    result: list[_Pairs] = []
    cells: _Cells | None = None
    for index, (low, high) in enumerate(itertools.pairwise(edges)):
        rng = np.random.default_rng([seed, index, 0])
        cells = _Cells.of(places, float(low), float(high), cells)
        lags, q, tried, taken = [], [], 0, 0
        while taken < wanted and tried < _MOST_CANDIDATES:
            # As many as will do, once the share that is taken is known.
            expected = 1.05 * (wanted - taken) * tried / max(taken, 1) if tried else _CANDIDATES
            one, other = cells.candidates(rng, int(min(max(expected, 1_000.0), _CANDIDATES)))
            steps = places[one] - places[other]
            length = np.sqrt(np.einsum("ij,ij->i", steps, steps))
            good = (length >= low) & (length < high) & (one != other) & within(steps, length)
            lags.append(length[good])
            q.append(values[one[good]] - values[other[good]])
            tried, taken = tried + len(one), taken + int(good.sum())
        # Of ordered pairs: half as many pairs.
        count = round(0.5 * cells.total * taken / tried) if tried else 0
        result.append((np.concatenate(lags)[:wanted], np.concatenate(q)[:wanted], count))
    return result


@dataclass(frozen=True)
class _Cubes:
    """Points in cubes of one width."""

    width: float
    order: IntArray  # points, cube by cube
    keys: IntArray  # of the cubes, rising
    start: IntArray  # of each cube in the order
    size: IntArray
    strides: IntArray  # of a key

    @classmethod
    def of(cls, places: FloatArray, width: float) -> _Cubes:
        cube = np.floor((places - places.min(axis=0)) / width).astype(np.int64)
        # More on either side, so that steps never wrap around.
        extent = cube.max(axis=0) + 2 * _MOST_CELLS + 3
        strides = np.concatenate([[1], np.cumprod(extent[:-1])])
        key = (cube + _MOST_CELLS + 1) @ strides
        order = np.argsort(key, kind="stable")
        return cls(width, order, *np.unique(key[order], return_index=True, return_counts=True), strides)


@dataclass(frozen=True)
class _Cells:
    """Points in cubes, and the numbers of ordered pairs of cubes that may be some lags apart."""

    cubes: _Cubes
    pairs: IntArray  # cubes (m, 2)
    weight: FloatArray  # cumulative numbers of pairs: (m,)

    @classmethod
    def of(cls, places: FloatArray, low: float, high: float, last: _Cells | None) -> _Cells:
        """Return cubes for lags from `low` to `high`, as wide as the difference where these are not too many.

        Cubes of the last bin's width are those of `last`.
        """
        extent = np.ptp(places, axis=0)
        for across in range(min(_MOST_CELLS, int(high / (high - low) + 1e-9)), 0, -1):
            width = high / across
            steps = _steps(places.shape[1], across, low / width)
            most = min(float(len(places)), float(np.prod(extent / width + 1.0)))
            if most * len(steps) <= _MOST_CELL_PAIRS:
                break
        is_same = last is not None and abs(last.cubes.width - width) <= 1e-12 * width
        cubes = last.cubes if last is not None and is_same else _Cubes.of(places, width)
        pairs = []
        for step in steps @ cubes.strides:
            neighbour = cubes.keys + step
            at = np.minimum(np.searchsorted(cubes.keys, neighbour), len(cubes.keys) - 1)
            one = np.flatnonzero(cubes.keys[at] == neighbour)
            pairs.append(np.column_stack([one, at[one]]))
        joined = np.concatenate(pairs)
        size = cubes.size.astype(np.float64)
        return cls(cubes, joined, np.cumsum(size[joined[:, 0]] * size[joined[:, 1]]))

    @property
    def total(self) -> float:
        """Number of ordered pairs."""
        return float(self.weight[-1])

    def candidates(self, rng: np.random.Generator, count: int) -> tuple[IntArray, IntArray]:
        """Draw ordered pairs of points, uniformly."""
        at = np.searchsorted(self.weight, rng.random(count) * self.total, side="right")
        cubes = self.pairs[np.minimum(at, len(self.pairs) - 1)]
        start, size, order = self.cubes.start, self.cubes.size, self.cubes.order
        ends = [start[cube] + (rng.random(count) * size[cube]).astype(np.int64) for cube in cubes.T]
        return order[ends[0]], order[ends[1]]


def _steps(dimensions: int, across: int, low: float) -> IntArray:
    """Return the steps between cubes whose points may be `low` to `across` widths apart: (m, k).

    Roundings of places and widths move a point by far less than the slack.
    """
    axis = np.arange(-across - 1, across + 2)
    steps = np.stack(np.meshgrid(*[axis] * dimensions, indexing="ij"), axis=-1).reshape(-1, dimensions)
    nearest = np.linalg.norm(np.maximum(np.abs(steps) - 1, 0), axis=1)
    furthest = np.linalg.norm(np.abs(steps) + 1, axis=1)
    within = (nearest <= across * (1.0 + 1e-9)) & (furthest >= low * (1.0 - 1e-9))
    return np.asarray(steps[within], dtype=np.int64)


# --------------------------------------------------------------------------------------------------------- estimators


def _matheron(q: FloatArray, rng: np.random.Generator) -> float:
    return float(0.5 * np.mean(q**2))


def _cressie(q: FloatArray, rng: np.random.Generator) -> float:
    n = len(q)
    return float(0.5 * np.mean(np.sqrt(np.abs(q))) ** 4 / (0.457 + 0.494 / n + 0.045 / n**2))


def _dowd(q: FloatArray, rng: np.random.Generator) -> float:
    return float(0.5 * 2.198 * np.median(np.abs(q)) ** 2)


def _genton(q: FloatArray, rng: np.random.Generator) -> float:
    if len(q) > MOST_COMPARED:
        q = rng.choice(q, MOST_COMPARED, replace=False)
    n = len(q)
    if n < 2:
        return float("nan")
    k = (n // 2 + 1) * (n // 2) // 2
    quantile = np.partition(scipy.spatial.distance.pdist(q[:, None], "cityblock"), k - 1)[k - 1]
    return float(0.5 * (2.219 * quantile) ** 2)


def _genton_bootstraps(q: FloatArray, rng: np.random.Generator) -> list[float]:
    """Return estimates of samples with replacement; all distances of q are sorted once, and weighted by repetitions."""
    n = len(q)
    k = (n // 2 + 1) * (n // 2) // 2
    one, other = np.triu_indices(n, 1)
    distances = np.abs(q[one] - q[other])
    order = np.argsort(distances)
    distances, one, other = np.append(0.0, distances[order]), one[order], other[order]
    estimates = []
    for _ in range(BOOTSTRAPS):
        repeats = np.bincount(rng.integers(0, n, n), minlength=n).astype(np.int32)
        # Pairs of one difference with itself are at distance zero.
        zeros = int((repeats * (repeats - 1)).sum()) // 2
        totals = np.cumsum(np.append(zeros, repeats[one] * repeats[other]))
        estimates.append(float(0.5 * (2.219 * distances[np.searchsorted(totals, k)]) ** 2))
    return estimates


_ESTIMATES: dict[str, Callable[[FloatArray, np.random.Generator], float]] = {
    "matheron": _matheron,
    "cressie": _cressie,
    "dowd": _dowd,
    "genton": _genton,
}


def _sampling_error(estimator: str, q: FloatArray, is_sample: bool, rng: np.random.Generator) -> float:
    """Return the standard error of an estimate against that of all pairs."""
    if not is_sample or len(q) < 2:
        return 0.0
    if estimator == "matheron":
        return float(np.std(0.5 * q**2, ddof=1) / np.sqrt(len(q)))
    most = _MOST_RESAMPLED if estimator == "genton" else MOST_COMPARED
    part = q if len(q) <= most else rng.choice(q, most, replace=False)
    if estimator == "genton":
        estimates = _genton_bootstraps(part, rng)
    else:
        estimates = [_ESTIMATES[estimator](rng.choice(part, len(part)), rng) for _ in range(BOOTSTRAPS)]
    # Errors fall with the root of the pairs that enter the estimate.
    entered = min(len(q), MOST_COMPARED) if estimator == "genton" else len(q)
    return float(np.std(estimates, ddof=1) * np.sqrt(len(part) / entered))
