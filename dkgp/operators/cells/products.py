"""Products with all terms of a kernel by cells: whole, or in parts over ranges of cells.

A product has two rounds of parts. `up` sums the moments of a range of source leaves; `join` adds up the cells above all
ranges. `finish` makes the rows of a range of target leaves from the moments. Results have the same bits however leaves
are cut into ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.kernels.small_products import LANES
from dkgp.kernels.terms import Terms
from dkgp.kernels.tiles.encoding import LOWEST_EXPONENT
from dkgp.kernels.tiles.stages import PARAMETERS, stage_address
from dkgp.operators.base import FloatArray
from dkgp.operators.cells.plan import Plan
from dkgp.operators.cells.sweeps import (
    add_near,
    column_sums,
    evaluate_leaves,
    group_sums,
    leaf_moments,
    merge_moments,
    split_expansions,
    translate,
)

UNIT = 2.0**-53
# More than all numbers that underflow in a product with weights that are not all zero, for a kernel of unit amplitude.
UNDERFLOW = 1e-290


@dataclass(frozen=True)
class Cost:
    """Counts of a product by cells: evaluated entries, floating-point operations of translations, bytes of plans.

    `double_entries` are those of the entries that are evaluated in double precision.
    """

    near_entries: int
    flops: int
    nbytes: int
    double_entries: int = 0


@dataclass(frozen=True)
class Moments:
    """Weights in the order of the sources' tree, and the moments of its cells."""

    weights: FloatArray  # (n_points, t)
    values: FloatArray  # flat: (cells * t, moments^d)
    mass: FloatArray  # (cells, t)
    groups: FloatArray  # sums of magnitudes: (cells * t, group_count)
    factors: FloatArray  # a power of two for each column, which takes the largest weight below one: (t,)

    @classmethod
    def room(cls, plan: Plan, V: FloatArray) -> Moments:
        """Room for the moments of weights V (n, t)."""
        rows = plan.sources.n_cells * V.shape[1]
        weights = plan.sources.gather(V)
        exponents = np.clip(np.frexp(np.abs(weights).max(axis=0))[1], -1000, 1000)
        return cls(
            weights,
            np.empty(rows * plan.moments**plan.d + LANES),
            np.empty((plan.sources.n_cells, V.shape[1])),
            np.empty((rows, plan.group_count)),
            np.ldexp(1.0, -exponents),
        )


@dataclass(frozen=True)
class Part:
    """Some rows of a product, and bounds on their errors: rows (k,), values and bounds (k, t)."""

    rows: NDArray[Any]
    values: FloatArray
    bounds: FloatArray


def up(plan: Plan, moments: Moments, leaves: tuple[int, int]) -> None:
    """Fill in the moments of a range of source leaves and of the cells that lie within it."""
    if not plan.translations:
        return
    first, last = leaves
    tree, p = plan.sources, plan.moments
    all_leaves = tree.leaves
    leaf_moments(
        first, last, tree.y, moments.weights, all_leaves.start, all_leaves.stop, _cells(plan), all_leaves.scale,
        all_leaves.coord, p, moments.values, moments.mass,
    )  # fmt: skip
    start, stop = int(all_leaves.start[first]), int(all_leaves.stop[last - 1])
    for number in range(len(tree.levels) - 1, -1, -1):
        level = tree.levels[number]
        _merge(plan, moments, number, *_inside(level, start, stop))


def join(plan: Plan, moments: Moments, ranges: list[tuple[int, int]]) -> None:
    """Fill in the moments of the cells that lie in no single one of the ranges of leaves, which are all done."""
    if not plan.translations:
        return
    leaves = plan.sources.leaves
    for number in range(len(plan.sources.levels) - 1, -1, -1):
        level = plan.sources.levels[number]
        done = 0
        for first, last in ranges:
            inside = _inside(level, int(leaves.start[first]), int(leaves.stop[last - 1]))
            if inside[0] < inside[1]:
                _merge(plan, moments, number, done, inside[0])
                done = inside[1]
        _merge(plan, moments, number, done, len(level))


def _cells(plan: Plan) -> NDArray[np.int64]:
    leaves = plan.sources.leaves
    cells: NDArray[np.int64] = plan.sources.at[leaves.level] + leaves.cell
    return cells


def _inside(level: Any, start: int, stop: int) -> tuple[int, int]:
    """Cells of a level whose points all lie in a range."""
    return int(np.searchsorted(level.start, start)), int(np.searchsorted(level.stop, stop, side="right"))


def _merge(plan: Plan, moments: Moments, number: int, first: int, last: int) -> None:
    if first >= last:
        return
    tree, t = plan.sources, moments.weights.shape[1]
    level, at = tree.levels[number], int(tree.at[number])
    if number + 1 < len(tree.levels):
        merge_moments(
            first, last, level.child, level.children, tree.levels[number + 1].coord, at, int(tree.at[number + 1]),
            plan.up, plan.d, plan.moments, t, moments.values, moments.mass,
        )  # fmt: skip
    group_sums((at + first) * t, (at + last) * t, moments.values, plan.groups, plan.group_count, moments.groups)


def finish(plan: Plan, moments: Moments, leaves: tuple[int, int]) -> Part:
    """Return the rows of a range of target leaves, of unit amplitude."""
    first, last = leaves
    tree, t = plan.targets, moments.weights.shape[1]
    table = tree.leaves
    start, stop = int(table.start[first]), int(table.stop[last - 1])
    out, bounds = np.zeros((t, stop - start)), np.zeros((last - first, t))
    if plan.translations:
        _descend(plan, moments, first, last, start, stop, out, bounds)
    mass = np.zeros((last - first, t))
    profile, parameters = plan.term.profile, (*plan.term.parameters, 0.0, 0.0)[: PARAMETERS - 1]
    program = np.array([[*parameters, LOWEST_EXPONENT[plan.near_type.itemsize]]]).view(np.int64)
    add_near(
        first, last, stage_address(profile.name, plan.near_type), program, np.empty(0, plan.near_type), plan.sources.y,
        tree.y, plan.side, moments.weights, moments.factors, table.start, table.stop, table.scale, table.coord,
        plan.near, plan.near_start, plan.near_stop, start, out, mass,
    )  # fmt: skip
    bounds += plan.near_errors[table.level[first:last], None] * mass
    rows, places = tree.rows_of(start, stop)
    by_point = np.repeat(bounds, table.stop[first:last] - table.start[first:last], axis=0)
    return Part(rows, out.T[places], by_point[places])


def _descend(
    plan: Plan,
    moments: Moments,
    first: int,
    last: int,
    start: int,
    stop: int,
    out: FloatArray,
    bounds: FloatArray,
) -> None:
    """Translate to the cells around a range of target leaves, level by level, and evaluate at their points."""
    tree, t, d, p = plan.targets, moments.weights.shape[1], plan.d, plan.order
    table = tree.leaves
    above, L, bound = 0, np.zeros(0), np.zeros(0)
    for number, level in enumerate(tree.levels):
        low = int(np.searchsorted(level.stop, start, side="right"))
        high = int(np.searchsorted(level.start, stop))
        if low >= high:
            break
        L_here, bound_here = np.zeros((high - low) * t * p**d + LANES), np.zeros((high - low) * t)
        translation = plan.translations.get(number)
        if translation is not None:
            translate(
                low, high, translation.pairs, translation.sources, translation.keys, translation.transforms,
                translation.counts, translation.operators, translation.operators_at, translation.places,
                translation.source_places, translation.signs, translation.weights, translation.remainder,
                moments.values, moments.groups, moments.mass, int(plan.sources.at[number]), t, p**d,
                plan.moments**d, L_here, bound_here,
            )  # fmt: skip
        if number:
            parents = tree.levels[number - 1]
            split_expansions(
                above, above + len(bound) // t, parents.child, parents.children, level.coord, above, low, high,
                plan.down, d, p, t, L, bound, L_here, bound_here,
            )  # fmt: skip
        chosen = first + np.flatnonzero(table.level[first:last] == number)
        evaluate_leaves(
            chosen, tree.y, table.start, table.stop, table.cell, table.scale, table.coord, low, p, t, L_here,
            bound_here, start, out, bounds, first,
        )  # fmt: skip
        above, L, bound = low, L_here, bound_here


class CellProducts:
    """K V and K(targets, X) V with a proven bound on each entry.

    Parameters
    ----------
    terms : Terms
        Of the kernel; see `terms_of`.
    inputs : (n, n_features) array_like
    tolerance : float
        Default tolerance of a product, relative to the sum of the magnitudes of a column of V.
    """

    def __init__(self, terms: Terms, inputs: ArrayLike, tolerance: float) -> None:
        self.terms = terms
        self.inputs = np.asarray(inputs, np.float64)
        self.tolerance = tolerance
        self._plans: dict[float, list[Plan]] = {}

    def plans(self, tolerance: float | None = None) -> list[Plan]:
        """Return the plans of all terms, made once for each tolerance."""
        key = self.tolerance if tolerance is None else tolerance
        if key not in self._plans:
            self._plans[key] = self._new_plans(key, None)
        return self._plans[key]

    def matmat(self, V: ArrayLike, tolerance: float | None = None) -> tuple[FloatArray, FloatArray]:
        """Return K V and a bound on the error of each entry: (n, t) and (n, t)."""
        return self._product(self.plans(tolerance), len(self.inputs), V)

    def cross(self, targets: ArrayLike, V: ArrayLike, tolerance: float | None = None) -> tuple[FloatArray, FloatArray]:
        """Return K(targets, X) V and a bound on the error of each entry: (r, t) and (r, t)."""
        rows = np.asarray(targets, np.float64)
        return self._product(self._new_plans(self.tolerance if tolerance is None else tolerance, rows), len(rows), V)

    def cost(self, tolerance: float | None = None) -> Cost:
        """Count the work of a product with one column."""
        plans = self.plans(tolerance)
        return Cost(
            sum(plan.near_entries for plan in plans),
            sum(plan.flops for plan in plans),
            sum(plan.nbytes for plan in plans),
            sum(plan.near_entries for plan in plans if plan.near_type == np.float64),
        )

    def _new_plans(self, tolerance: float, targets: FloatArray | None) -> list[Plan]:
        if not len(self.inputs) or (targets is not None and not len(targets)):
            return []
        share = tolerance / max(self.terms.magnitude, 1e-300)
        return [Plan(term, self.inputs, share, targets) for term in self.terms.terms]

    def _product(self, plans: list[Plan], count: int, V: ArrayLike) -> tuple[FloatArray, FloatArray]:
        weights = np.asarray(V, np.float64)
        result, bounds = self.begin(count, weights)
        for plan in plans:
            moments = Moments.room(plan, weights)
            ranges = plan.source_ranges(1)
            for leaves in ranges:
                up(plan, moments, leaves)
            join(plan, moments, ranges)
            for leaves in plan.ranges(1):
                self.add(plan, finish(plan, moments, leaves), result, bounds)
        return result, bounds

    def begin(self, count: int, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the constant's part of `count` rows, with bounds that cover all roundings of the sum over terms."""
        sums, magnitude = column_sums(weights)
        value = np.tile(self.terms.constant * sums, (count, 1))
        # The sum of the weights, products with amplitudes, and the sum over terms.
        rounding = 1.01 * UNIT * (2.0 * len(self.terms.terms) + 8.0) * self.terms.magnitude
        # Products of tiny numbers lose up to 2^-1075 each, and so do products in bounds.
        underflow = np.where(magnitude > 0.0, UNDERFLOW * max(1.0, self.terms.magnitude), 0.0)
        return value, np.tile(rounding * magnitude + underflow, (count, 1))

    @staticmethod
    def add(plan: Plan, part: Part, result: FloatArray, bounds: FloatArray) -> None:
        """Add a part of a term's product to rows of the whole one."""
        amplitude = plan.term.amplitude
        result[part.rows] += amplitude * part.values
        bounds[part.rows] += abs(amplitude) * part.bounds * (1.0 + 1e-9)
