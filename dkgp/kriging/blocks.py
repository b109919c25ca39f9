"""Block kriging: averages of a field over rectangles and polygons, with proven bounds.

The covariances of a block's average with the samples are integrals along its outline (`outlines`), so means have no
error of quadrature. Its own variance c_BB is that of a weighted sum (`quadrature`) up to eps^2, the prior variance of
the difference; a finer lattice, which needs no solve, narrows it where the posterior variance needs that (`areas`).
Measurement errors and micro-scale variation average to zero over an area.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.kriging.areas import variance_of
from dkgp.kriging.covariates import read_at_points
from dkgp.kriging.field import Field
from dkgp.kriging.functionals import Integrals, averages, prior_variances
from dkgp.kriging.grids import Grid
from dkgp.kriging.outlines import Outline, covariances
from dkgp.kriging.quadrature import Rule, moved_rectangle, polygon, rectangle
from dkgp.kriging.tables import Polygons, read_polygons
from dkgp.models.context import RunContext
from dkgp.models.rounding import EPS, EVALUATION, UNIT
from dkgp.models.trend import Drift, Trend

# Nodes and blocks that are solved for together, and the numbers that their columns may hold.
MOST_NODES, MOST_BLOCKS, MOST_NUMBERS = 8192, 64, 2**24
# Cells a side of a block's finest rule.
MOST_ORDER = 32


@dataclass(frozen=True, eq=False)
class BlockPredictions:
    """Averages over B blocks, in the target's units: (B, p), except the last two, (B,).

    Attributes
    ----------
    mean, mean_error_bound
        The exact average of the exact mean lies within the bound.
    variance, variance_lower, variance_upper
        Of the average; the exact one lies between the ends.
    quadrature_error : (B,)
        Prior deviation of the sum from the average.
    area : (B,)
    """

    mean: FloatArray
    mean_error_bound: FloatArray
    variance: FloatArray
    variance_lower: FloatArray
    variance_upper: FloatArray
    quadrature_error: FloatArray
    area: FloatArray


def rules_of(
    field: Field, blocks: Sequence[Any], *, order: int = 8, tolerance: float = 0.01, names: Sequence[str] = ()
) -> list[Rule]:
    """Return the rule of each block, refined until its error is below `tolerance` of the field's deviation.

    Parameters
    ----------
    blocks : sequence of (west, east, south, north) or shapely polygons
    order : int
        Nodes a side to begin with; at most 32 at the end, whose error is reported.
    """
    _require_plane(field)
    if not 1 <= order <= MOST_ORDER:
        raise InputError(f"`quadrature` must be 1 to {MOST_ORDER} nodes per side; got {order}")
    goal = tolerance * float(np.sqrt(field.variogram.field_variance))
    known: dict[tuple[str, str], Rule] = {}
    rules = []
    for index, block in enumerate(blocks):
        name = str(names[index] if len(names) else index)
        if isinstance(block, tuple | list):
            rules.append(_rectangle(tuple(block), field, (order, goal), known))
        else:
            rules.append(_refined(partial(polygon, block, field.variogram, name=name), order, goal))
    return rules


def _require_plane(field: Field) -> None:
    """Refuse fields whose places are not points of a plane."""
    space = field.space
    if space.metric != "plane" or space.dimensions != 2 or space.has_time:
        kind = "on the globe" if space.metric != "plane" else f"of {space.n_columns} coordinates, time included"
        raise InputError(
            f"block kriging needs places in a plane; these are {kind}. Project the coordinates of samples and blocks"
        )


def _refined(make: Callable[..., Rule], order: int, goal: float) -> Rule:
    """Return a rule whose order is doubled until its error is below the goal."""
    rule = make(order=order)
    while rule.error > goal and 2 * order <= MOST_ORDER:
        order *= 2
        rule = make(order=order)
    return rule


def _rectangle(
    block: tuple[float, ...], field: Field, wanted: tuple[int, float], known: dict[tuple[str, str], Rule]
) -> Rule:
    """Return a rectangle's rule: that of one of the same size, moved, if there is one."""
    if len(block) != 4:
        raise InputError(f"a block is a polygon, or (west, east, south, north); got {block}")
    west, east, south, north = (float(value) for value in block)
    # Sizes that differ by roundings have errors that differ by less than their margin.
    key = f"{east - west:.11e}", f"{north - south:.11e}"
    other = known.get(key)
    if other is None:
        known[key] = other = _refined(partial(rectangle, (west, east, south, north), field.variogram), *wanted)
        return other
    order = math.isqrt(len(other.weights))
    return moved_rectangle((west, east, south, north), field.variogram, order, other)


def grid_blocks(grid: Grid) -> list[tuple[float, float, float, float]]:
    """Return the cells of a grid as blocks, row by row from the south-west."""
    half = 0.5 * grid.spacing[1], 0.5 * grid.spacing[0]
    return [(x - half[0], x + half[0], y - half[1], y + half[1]) for y in grid.y for x in grid.x]


def krige_blocks(
    field: Field,
    rules: Sequence[Rule],
    context: RunContext,
    *,
    covariates: Any = None,
    tolerance: float | None = None,
) -> BlockPredictions:
    """Predict the averages over blocks.

    Parameters
    ----------
    field, rules, context
    covariates : mapping, CovariateRasters or callable, optional
        Those of an external drift: addresses of rasters by name, or a function of x and y, (m,) each, that returns
        (m, c). Their average over a block is that over the nodes. Blocks with a node without a value have NaN.
    tolerance : float, optional
        That of the systems; see `functionals.averages`.

    Raises
    ------
    InputError
        Covariates that the field does not have, or needs.
    """
    names = field.covariate_names
    if (covariates is None) == bool(names):
        raise InputError(
            f"the field has {'the covariates ' + ', '.join(names) if names else 'no covariates'}; pass "
            f"{'rasters of them, or a function of x and y, as `covariates`' if names else 'no `covariates`'}"
        )
    read = read_at_points(covariates, names, field.space.crs)
    parts = [_together(field, batch, context, tolerance, read) for batch in _batches(rules, field.n_samples)]
    mean, bound, lower, upper = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    empty = np.isnan(mean).all(axis=1)
    if empty.all():
        raise InputError("covariates are missing at nodes of every block; check the CRS and the region of the rasters")
    if empty.any() and context.note is not None:
        context.note(
            f"covariates are missing at nodes of {empty.sum():,} of {len(rules):,} blocks, first of block "
            f"{int(np.argmax(empty))}; they are left empty"
        )
    error, area = np.array([rule.error for rule in rules]), np.array([rule.area for rule in rules])
    off, deviation = _drift_error(field, rules)
    bound = (bound + off) * (1.0 + EVALUATION * UNIT)
    low = np.maximum(np.sqrt(lower) - deviation, 0.0) ** 2 * (1.0 - 1e-14)
    high = (np.sqrt(upper) + deviation) ** 2 * (1.0 + 1e-14)
    return BlockPredictions(mean, bound, low + 0.5 * (high - low), low, high, error, area)


def _batches(rules: Sequence[Rule], n: int) -> list[list[Rule]]:
    most = max(1, min(MOST_BLOCKS, MOST_NUMBERS // max(n, 1)))
    batches: list[list[Rule]] = [[]]
    nodes = 0
    for rule in rules:
        if batches[-1] and (len(batches[-1]) == most or nodes + len(rule.nodes) > MOST_NODES):
            batches.append([])
            nodes = 0
        batches[-1].append(rule)
        nodes += len(rule.nodes)
    return batches


def _together(
    field: Field, rules: Sequence[Rule], context: RunContext, tolerance: float | None, read: Any
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    nodes = np.concatenate([rule.nodes for rule in rules])
    weights = np.zeros((len(nodes), len(rules)))
    start = 0
    for index, rule in enumerate(rules):
        weights[start : start + len(rule.nodes), index] = rule.weights
        start += len(rule.nodes)
    rows = _inputs(field, nodes)
    integrals = _integrals(field, rules, rows, weights) if all(rule.rings for rule in rules) else None
    empty = np.zeros(len(rules), dtype=bool)
    if read is not None:
        columns = _covariates(field, read, nodes)
        missing: Any = np.isnan(columns).any(axis=1)
        empty = np.asarray(missing @ weights > 0.0)
        rows = np.column_stack([rows, np.where(missing[:, None], 0.0, columns)])
    known = averages(field, rows, weights, context, tolerance=tolerance, integrals=integrals)
    results = known.mean, known.bound, known.lower, known.upper
    for result in results:
        result[empty] = np.nan
    return results


def _covariates(field: Field, read: Any, nodes: FloatArray) -> FloatArray:
    """Return the engine's standardised covariates at nodes: (m, c)."""
    names, to = field.covariate_names, field.record.standardisation
    if not callable(read):
        raise InputError(f"`covariates` of blocks are rasters, or a function of x and y; got {type(read).__name__}")
    values = np.asarray(read(nodes[:, 0], nodes[:, 1]), dtype=np.float64)
    if values.shape != (len(nodes), len(names)):
        raise InputError(
            f"covariates of {len(nodes):,} points have shape {values.shape}; expected {(len(nodes), len(names))}"
        )
    values = np.where(np.isfinite(values), values, np.nan)
    places = field.space.places((nodes[:, 0], nodes[:, 1]))
    rows = (to.keep_rows(field.inputs(places, values)) - to.row_mean) / to.row_std
    return np.asarray(rows[:, field.record.n_features :])


def _inputs(field: Field, points: FloatArray) -> FloatArray:
    """Return the engine's inputs of points of the plane: (m, 2)."""
    return field.standard_inputs(field.space.places((points[:, 0], points[:, 1])))


def _integrals(field: Field, rules: Sequence[Rule], rows: FloatArray, weights: FloatArray) -> Integrals:
    """Return the covariances of blocks with the samples, and the ends of their variances, on the engine's scale."""
    samples, sizes, variogram = field.sample_inputs, np.abs(field.record.alpha), field.variogram
    to, n, count = field.record.standardisation, len(samples), len(rules)
    unit, stretch = float(to.input_std[0]), float(np.linalg.norm(variogram.anisotropy(2)))
    # Roundings of corners, and of samples where structures differ in range.
    magnitude = float(np.abs(to.input_mean).max()) + unit * float(np.abs(samples).max())
    columns, off, missed = np.zeros((n, count)), np.zeros(count), np.zeros((count, sizes.shape[1]))
    shifted = np.zeros_like(missed)
    cross, unsure, astray = np.zeros(count), np.zeros(count), np.zeros(count)
    for index, rule in enumerate(rules):
        farthest = stretch * max(float(np.abs(ring).max()) for ring in rule.rings) + magnitude
        outline = Outline.of([_inputs(field, ring) for ring in rule.rings], 8.0 * EPS * farthest / unit)
        nodes = np.flatnonzero(weights[:, index])
        values, errors, moved = covariances(outline, np.concatenate([samples, rows[nodes]]), variogram, unit)
        columns[:, index], share, astray[index] = values[:n], weights[nodes, index], outline.astray
        off[index], missed[index], shifted[index] = np.linalg.norm(errors[:n]), errors[:n] @ sizes, moved[:n] @ sizes
        cross[index], unsure[index] = share @ values[n:], share @ errors[n:] + len(share) * EPS
    low, high = prior_variances(field, rows, weights)
    eps = np.array([rule.error for rule in rules]) / math.sqrt(variogram.field_variance)
    slack = 2.0 * unsure + 16.0 * EPS
    # All is of the block with the corners as they are stored; the given block's average differs by `astray`.
    least, most = np.maximum(2.0 * cross - high - slack, 0.0), 2.0 * cross - low + slack + (eps + astray) ** 2
    known: dict[tuple[str, str], tuple[float, float]] = {}

    def narrowed(index: int, width: float) -> tuple[float, float]:
        sides = rules[index].sides
        key = ("", str(index)) if sides is None else (f"{sides[0]:.11e}", f"{sides[1]:.11e}")
        if key not in known or known[key][1] - known[key][0] > 1.5 * width:
            known[key] = variance_of(rules[index], variogram, width)
        change = astray[index] * (2.0 * math.sqrt(known[key][1]) + astray[index])
        return known[key][0] - change, known[key][1] + change

    off, missed, shifted = (part * EVALUATION for part in (off, missed, shifted))
    return Integrals(columns, off, missed, shifted, least, most, astray, narrowed)


def _drift_error(field: Field, rules: Sequence[Rule]) -> tuple[FloatArray, FloatArray]:
    """Return the error of the sums for the drift: of means (B, p), and of deviations (B, p)."""
    trend = Trend.held(field.record.trend)
    zero = np.zeros((len(rules), field.record.n_targets))
    if trend is None or not trend.kind.degree:
        return zero, zero
    if trend.kind.degree > 2:
        raise InputError(f"block kriging takes drifts of degree 0 to 2; got {trend.kind.degree}")
    d, unit = field.record.n_features, float(field.record.standardisation.input_std[0])
    box = np.array(trend.kind.box) if trend.kind.box else np.column_stack([np.zeros(d), np.ones(d)])
    width = float(box[:, 1].min())
    slip = np.array([rule.slip for rule in rules]) / (unit * width)
    errors = np.zeros((len(rules), trend.count))
    errors[:, 1 : 1 + d] = slip[:, None]
    if trend.kind.degree == 2:
        # Of a product of coordinates about the origin: of each by the other's size, and of both about the centre.
        places = [field.space.places((rule.nodes[:, 0], rule.nodes[:, 1])) for rule in rules]
        size = np.array([np.abs((field.standard_inputs(one) - box[:, 0]) / box[:, 1]).max() for one in places])
        extent = np.array([np.ptp(field.standard_inputs(one), axis=0).sum() / width for one in places])
        spread = np.array([rule.spread for rule in rules]) / (unit * width) ** 2
        errors[:, 1 + d : Drift(2).count(d)] = (spread + 2.0 * (size + 2.0 * extent) * slip)[:, None]
    deviation = np.linalg.norm(errors @ np.abs(np.array(trend.whitener)).T, axis=1) / np.sqrt(1.0 - trend.off)
    means = errors @ np.abs(np.array(trend.coefficients)) + deviation[:, None] * np.array(trend.missed)
    return means * field.unit * (1.0 + 1e-12), deviation[:, None] * field.unit * (1.0 + 1e-12)


def block_table(
    field: Field,
    geometries: Any,
    region: Sequence[float],
    settings: tuple[Any, int, float],
    context: RunContext,
    covariates: Any = None,
) -> Any:
    """Return the table of `Kriging.blocks`.

    Parameters
    ----------
    geometries : GeoDataFrame, GeoSeries, Polygons, path of a file, sequence of polygons or rectangles, or None
        None: the cells of a grid over the region.
    settings : (spacing, quadrature, quadrature_tolerance)
    context : RunContext
    covariates : optional
        See `krige_blocks`.
    """
    import pandas as pd

    spacing, order, tolerance = settings
    if (geometries is None) == (spacing is None):
        raise InputError("give either `geometries` (polygons or rectangles) or the `spacing` of a grid of blocks")
    _require_plane(field)
    if isinstance(geometries, Polygons):
        import geopandas

        geometries = geopandas.GeoSeries(list(geometries.shapes), index=list(geometries.ids), crs=geometries.crs)
    polygons: Polygons | None = None
    blocks: Sequence[Any]
    if geometries is None:
        blocks = grid_blocks(Grid.of(region, spacing=spacing, pixel_register=True))
    elif hasattr(geometries, "to_crs") or isinstance(geometries, str | os.PathLike):
        polygons = read_polygons(geometries, crs=field.space.crs)
        blocks = polygons.shapes
    else:
        blocks = [geometries] if hasattr(geometries, "geom_type") else list(geometries)
    if not len(blocks):
        raise InputError("`geometries` is empty; expected at least one polygon or rectangle")
    names = () if polygons is None else polygons.ids
    rules = rules_of(field, blocks, order=order, tolerance=tolerance, names=names)
    result = krige_blocks(field, rules, context, covariates=covariates)
    targets = field.record.target_names
    columns: dict[str, Any] = {}
    for index, target in enumerate(targets):
        start = "" if len(targets) == 1 else f"{target}_"
        for name in ("mean", "mean_error_bound", "variance", "variance_lower", "variance_upper"):
            columns[start + name] = getattr(result, name)[:, index]
    columns |= {"quadrature_error": result.quadrature_error, "area": result.area}
    if polygons is not None:
        import geopandas

        # Geometries of a frame stay as they came, in their CRS.
        came = hasattr(geometries, "to_crs")
        rows: Any = geometries.index if came else list(polygons.ids)
        crs: Any = geometries.crs if came else polygons.crs
        shapes = list(geometries.geometry) if came else list(polygons.shapes)
        return geopandas.GeoDataFrame(columns, geometry=shapes, index=rows, crs=crs)
    if all(isinstance(block, tuple | list) for block in blocks):
        edges = np.array(blocks, dtype=np.float64)
        sides = dict(zip(("west", "east", "south", "north"), edges.T, strict=True))
        return pd.DataFrame(sides | columns)
    return pd.DataFrame({"geometry": list(blocks)} | columns)
