"""Block kriging: averages of a field over rectangles and polygons, with proven bounds.

The average over a block is predicted as a weighted sum of the field (`quadrature`), and the error of that sum is added:
with eps its prior deviation, the mean moves by at most eps |m|_H, and the deviation by at most eps. The norm of the
mean m = k'a has |m|_H^2 <= e'a + |r||a| + r'Kbar^-1 r, for e = z - H beta and the residual r. Measurement errors and
micro-scale variation average to zero over an area.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.data.types import FloatArray
from dkgp.errors import InputError, StoreError
from dkgp.kriging.field import Field
from dkgp.kriging.functionals import averages
from dkgp.kriging.grids import Grid
from dkgp.kriging.quadrature import Rule, polygon, rectangle
from dkgp.models.certificate import Certificate
from dkgp.models.context import RunContext
from dkgp.models.noise import Noise
from dkgp.models.rounding import EVALUATION, UNIT
from dkgp.models.trend import Trend

# Nodes and blocks that are solved for together, and the numbers that their columns may hold.
MOST_NODES, MOST_BLOCKS, MOST_NUMBERS = 8192, 64, 2**26
# Cells a side of a block's finest rule.
MOST_ORDER = 64


@dataclass(frozen=True, eq=False)
class BlockPredictions:
    """Averages over B blocks, in the target's units: (B, p), except the last two, (B,).

    Attributes
    ----------
    mean, mean_error_bound
        The exact average of the exact mean lies within the bound, the error of the quadrature included.
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
        Nodes a side to begin with; at most 64 at the end, whose error is reported.
    """
    if field.space.metric != "plane" or field.space.dimensions != 2 or field.space.has_time:
        raise InputError("block kriging is of places in a plane; project the coordinates of samples and blocks")
    if not 1 <= order <= MOST_ORDER:
        raise InputError(f"`quadrature` is 1 to {MOST_ORDER} nodes a side; got {order}")
    goal = tolerance * float(np.sqrt(field.variogram.field_variance))
    rules = []
    for index, block in enumerate(blocks):
        name = names[index] if names else str(index)
        make: Callable[[int], Rule]
        if hasattr(block, "geom_type"):
            make = lambda n, block=block, name=name: polygon(block, field.variogram, n, name)  # type: ignore[misc]  # noqa: E731
        else:
            make = lambda n, block=block: rectangle(tuple(block), field.variogram, n)  # type: ignore[misc]  # noqa: E731
        size = order
        rule = make(size)
        while rule.error > goal and 2 * size <= MOST_ORDER:
            size *= 2
            rule = make(size)
        rules.append(rule)
    return rules


def grid_blocks(grid: Grid) -> list[tuple[float, float, float, float]]:
    """Return the cells of a grid as blocks, row by row from the south-west."""
    half = 0.5 * grid.spacing[1], 0.5 * grid.spacing[0]
    return [(x - half[0], x + half[0], y - half[1], y + half[1]) for y in grid.y for x in grid.x]


def krige_blocks(
    field: Field, rules: Sequence[Rule], context: RunContext, *, tolerance: float = 1e-7
) -> BlockPredictions:
    """Predict the averages over blocks; `tolerance` is that of the systems (see `functionals.averages`)."""
    parts = [_together(field, batch, context, tolerance) for batch in _batches(rules, field.n_samples)]
    mean, bound, lower, upper = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    error, area = np.array([rule.error for rule in rules]), np.array([rule.area for rule in rules])
    off, deviation = _drift_error(field, rules)
    scale = field.unit
    norm = _norm(field)
    eps = error[:, None]
    # |m|_H is on the engine's scale, whose unit is the field's deviation.
    bound = (bound + (eps / scale) * norm * scale + off) * (1.0 + EVALUATION * UNIT)
    low = np.maximum(np.sqrt(lower) - eps - deviation, 0.0) ** 2 * (1.0 - 1e-14)
    high = (np.sqrt(upper) + eps + deviation) ** 2 * (1.0 + 1e-14)
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
    field: Field, rules: Sequence[Rule], context: RunContext, tolerance: float
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    nodes = np.concatenate([rule.nodes for rule in rules])
    weights = np.zeros((len(nodes), len(rules)))
    start = 0
    for index, rule in enumerate(rules):
        weights[start : start + len(rule.nodes), index] = rule.weights
        start += len(rule.nodes)
    rows = field.standard_inputs(field.space.places((nodes[:, 0], nodes[:, 1])))
    found = averages(field, rows, weights, context, tolerance=tolerance)
    return found.mean, found.bound, found.lower, found.upper


def _norm(field: Field) -> FloatArray:
    """Return upper bounds on |m|_H of the exact means, on the engine's scale: (p,)."""
    model, state = field.record, field.record.training_state()
    if state is None:
        raise StoreError("this field was stored without its values; fit it again")
    dataset, p = state[0], model.n_targets
    certificate, trend = Certificate.from_json(dict(model.certificate)), Trend.held(model.trend)
    alpha, rest = model.alpha[:, :p], dataset.all_targets()
    if trend is not None:
        beta = np.array(trend.coefficients)
        alpha = alpha - model.alpha[:, p:] @ beta
        rest = rest - trend.kind.of(dataset) @ beta
    weights = np.sqrt(np.broadcast_to(Noise.of_model(model).diagonal, (len(alpha),)) / certificate.noise_variance)
    residual = certificate.proven_residual_norm[:p]
    square = np.einsum("np,np->p", rest, alpha) + residual * np.linalg.norm(weights[:, None] * alpha, axis=0)
    sizes = np.einsum("np,np->p", np.abs(rest), np.abs(alpha))
    square = square + residual**2 / certificate.noise_variance + EVALUATION * (len(alpha) + 16.0) * UNIT * sizes
    return np.asarray(np.sqrt(np.maximum(square, 0.0)) * (1.0 + 1e-12))


def _drift_error(field: Field, rules: Sequence[Rule]) -> tuple[FloatArray, FloatArray]:
    """Return what the sums miss of a drift of degree 2: of means (B, p), and of deviations (B, p)."""
    trend = Trend.held(field.record.trend)
    zero = np.zeros((len(rules), field.record.n_targets))
    if trend is None or (trend.kind.degree or 0) < 2:
        return zero, zero
    if (trend.kind.degree or 0) > 2:
        raise InputError(f"block kriging takes drifts of degree 0 to 2; got {trend.kind.degree}")
    d = field.record.n_features
    products = trend.kind.count(d) - 1 - d
    width = min(pair[1] for pair in trend.kind.box)
    unit = float(field.record.standardisation.input_std[0])
    spread = np.array([rule.spread for rule in rules]) / (unit * width) ** 2
    size = np.abs(np.array(trend.coefficients)[1 + d : 1 + d + products]).sum(axis=0)
    whitener = np.abs(np.array(trend.whitener)[:, 1 + d : 1 + d + products]).sum(axis=1)
    deviation = spread * float(np.linalg.norm(whitener)) / np.sqrt(1.0 - trend.off)
    return spread[:, None] * size * field.unit * (1.0 + 1e-12), deviation[:, None] * field.unit * (1.0 + 1e-12)
