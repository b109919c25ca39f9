"""Sums over weighted points at other inputs, K(T, X) V, and their derivatives, by cells: each within a proven bound.

The tree of the points X, their moments and the expansions of the kernel are made once, in a root cell with room for
targets around X. Each piece of T gets a separate tree in the same root cell, with lists of pairs. For derivatives
(Theorem 19b) local expansions are differentiated, and near sources are evaluated entry by entry from the inputs
themselves.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.threads import single_threaded_blas
from dkgp.kernels.compiler import cached_njit
from dkgp.kernels.program import numpy_functions
from dkgp.kernels.small_products import LANES
from dkgp.kernels.terms import Term, Terms
from dkgp.kernels.tiles.slopes import SlopeEvaluator
from dkgp.kernels.vector_math import fma
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.cells.plan import Frame, Plan, Translations, Tree, Walk, build_expansions, morton_codes, padded
from dkgp.operators.cells.products import UNDERFLOW, CellProducts, Moments, finish, join, up
from dkgp.operators.cells.proof import CHEAP_ORDERS, EXTRA, Expansion, group_count, groups
from dkgp.operators.cells.roundings import HIGHEST, displacement, half_table
from dkgp.operators.cells.sweeps import split_expansions, translate

# Room around the points in the root cell, in sides of the cube that holds them.
MARGIN = 1.5
# Most sources of a leaf, by dimension, and most targets of one.
SOURCE_LEAF, TARGET_LEAF = {1: 64, 2: 64, 3: 64}, 16
# Beyond it a profile is taken to be no smaller: squares stay finite.
_FARTHEST = 1e12


class Sources:
    """Points of one term in a tree of cells, and the expansions within a tolerance."""

    def __init__(self, term: Term, inputs: FloatArray, tolerance: float, *, slopes: bool = False) -> None:
        rows = np.ascontiguousarray(inputs[:, list(term.features)])
        self.term, self.d, self.tolerance, self._slopes = term, len(term.features), tolerance, slopes
        self.low, self.high = rows.min(axis=0), rows.max(axis=0)
        scale = np.array(term.scale)
        with np.errstate(over="ignore"):
            room = MARGIN * float(((self.high - self.low) * scale).max()) / scale
        self.frame = Frame.around(term, [rows, np.array([self.low - room, self.high + room])])
        self.tree = Tree(self.frame.place(rows))
        self.tree.grow(SOURCE_LEAF[self.d])
        self.tree.finish()
        n, ring = self.tree.n_points, 6**self.d - 3**self.d
        most = [min(n, ring * int((level.stop - level.start).max())) for level in self.tree.levels]
        # Errors for a unit of weights: the fewer weights the cells of a level around a target can have, the larger.
        self.tolerances = [0.25 * tolerance * n / count for count in most]
        self._expansions: dict[tuple[int, tuple[int, ...]], Expansion] = {}
        near = sorted({tuple(sorted(offset, reverse=True)) for offset in np.ndindex((4,) * self.d) if any(offset)})
        keys = list(itertools.product(range(len(most)), near))

        def build(place: int) -> None:
            self.expansion(*keys[place])

        build_expansions(build, len(keys), self.d)
        self.order = max([1, *(self.expansion(*key).order for key in keys)])
        self.moment_order = min(self.order + EXTRA, HIGHEST)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.tree.nbytes

    def expansion(self, level: int, canon: tuple[int, ...]) -> Expansion:
        """Return the expansion of a level and an offset, sorted and not negative."""
        key = level, canon
        if key not in self._expansions:
            profile, parameter, side = self.term.profile, self.term.parameter, self.frame.side * 0.5**level
            with single_threaded_blas():
                expansion = Expansion(
                    profile,
                    parameter,
                    side,
                    canon,
                    self.tolerances[level],
                    slopes=self._slopes,
                    cap=CHEAP_ORDERS[self.d],
                )
            # Threads that build the same one at a time build equal ones; one of these stays.
            self._expansions.setdefault(key, expansion)
        return self._expansions[key]

    def moments(self, weights: FloatArray) -> Moments:
        """Return the moments of weights (n, t)."""
        tables = SimpleNamespace(
            sources=self.tree,
            d=self.d,
            moments=self.moment_order,
            groups=groups(self.moment_order, self.d),
            group_count=group_count(self.moment_order, self.d),
            up=padded(half_table(self.moment_order).transpose(0, 2, 1)),
            translations=True,
        )
        plan = cast(Plan, tables)
        result = Moments.room(plan, weights)
        whole = [(0, len(self.tree.leaves))]
        up(plan, result, whole[0])
        join(plan, result, whole)
        return result

    def beyond(self, targets: FloatArray) -> tuple[IndexArray, FloatArray, FloatArray]:
        """Return the targets outside of the root cell, and the largest entry and slope of the profile there."""
        with np.errstate(over="ignore", invalid="ignore"):
            y = self.frame.place(targets)
            rows = np.flatnonzero(~((y >= 0.0) & (y < 1.0)).all(axis=1))
            apart = np.maximum(np.maximum(self.low - targets[rows], targets[rows] - self.high), 0.0)
            distances = np.minimum(np.sqrt(((apart * np.array(self.term.scale)) ** 2).sum(axis=1)), _FARTHEST)
        formula = self.term.profile.formula
        assert formula is not None
        nearest = distances * (1.0 - 1e-12)
        values = np.asarray(formula(nearest * nearest, self.term.parameter, numpy_functions(np.float64)))
        steepest = np.array([self.term.profile.steepest(float(r), self.term.parameter) for r in nearest])
        apart_from_all = distances >= self.term.profile.support * (1.0 + 1e-9)
        largest, slope = (np.where(apart_from_all, 0.0, part * (1.0 + 1e-9) + 1e-300) for part in (values, steepest))
        return rows, largest, slope


class _Walk(Walk):
    """The walk of a piece, with the expansions that all pieces share."""

    plan: PiecePlan

    def _tolerances(self, number: int, *_: Any) -> tuple[float, float]:
        allowed = self.plan.shared.tolerances[number]
        return allowed, allowed

    def _expansion(self, number: int, canon: tuple[int, ...], tolerance: float, pairs: int) -> Expansion:
        shared = self.plan.shared
        expansion = shared.expansion(number, canon)
        if expansion.order > shared.order:
            expansion = _DIVIDED
        self.classes[number, canon] = expansion
        return expansion


_DIVIDED = cast(Expansion, SimpleNamespace(order=-1))


class PiecePlan(Plan):
    """The plan of sums at some targets within the root cell of their sources."""

    def __init__(self, shared: Sources, targets: FloatArray) -> None:
        self.shared, self.term, self.d, self.tolerance = shared, shared.term, shared.d, shared.tolerance
        self._frame, self.sources = shared.frame, shared.tree
        self.displacement = displacement(shared.frame.extent, shared.frame.side, shared.d)
        place = shared.frame.place(targets)
        self.targets = Tree(place)
        self.targets.grow(self._leaf(place))
        self.targets.finish()
        walk = _Walk(self)
        far, near = walk.run()
        self.targets.cut(max([0, *far, *(part.level for part in near)]))
        self._list_near(near)
        self._settle(walk, far)

    def _leaf(self, place: FloatArray) -> int:
        """Return how many targets a leaf has at most: fewer where sources are dense, to have few of these near."""
        low, high, y = place.min(axis=0)[:, None], place.max(axis=0)[:, None], self.sources.y
        around = int(np.count_nonzero(((y >= low) & (y <= high)).all(axis=0)))
        return max(1, min(TARGET_LEAF, SOURCE_LEAF[self.d] * len(place) // (2 * max(1, around))))

    def _orders(self, walk: Walk) -> tuple[int, int]:
        return self.shared.order, self.shared.moment_order


@dataclass(frozen=True)
class TermSums:
    """The points of all terms, their expansions within a tolerance, and the moments of their weights."""

    sources: list[Sources]
    moments: list[Moments]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        arrays = sum(sum(value.nbytes for value in vars(part).values()) for part in self.moments)
        return sum(source.nbytes for source in self.sources) + int(arrays)


class CrossSums:
    """K(T, X) V for points X and weights V that stay, and targets T piece by piece; safe for several threads."""

    def __init__(self, terms: Terms, inputs: FloatArray, weights: FloatArray) -> None:
        self.terms, self.inputs, self.weights = terms, inputs, weights
        self.masses = np.abs(weights).sum(axis=0) * (1.0 + 1e-9)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.inputs.nbytes + self.weights.nbytes

    def within(self, tolerance: float) -> TermSums:
        """Return all that sums within a tolerance take, relative to the magnitudes of the weights if these are even."""
        share = tolerance / max(self.terms.magnitude, 1e-300)
        sources = [Sources(term, self.inputs, share) for term in self.terms.terms]
        return TermSums(sources, [source.moments(self.weights) for source in sources])

    def at(self, targets: FloatArray, within: TermSums) -> tuple[FloatArray, FloatArray]:
        """Return sums at targets (r, n_features) and bounds on their errors, (r, t) both.

        A sum outside of the root cell is that of the constant alone, and its bound covers the terms that this omits.
        """
        result, bounds = CellProducts(self.terms, self.inputs[:0], 1.0).begin(len(targets), self.weights)
        for source, moments in zip(within.sources, within.moments, strict=True):
            rows = np.ascontiguousarray(targets[:, list(source.term.features)])
            amplitude = abs(source.term.amplitude)
            outside, largest, _ = source.beyond(rows)
            bounds[outside] += amplitude * largest[:, None] * self.masses
            inside = np.setdiff1d(np.arange(len(rows)), outside, assume_unique=True)
            if not len(inside):
                continue
            plan = PiecePlan(source, rows[inside])
            part = finish(plan, moments, (0, len(plan.targets.leaves)))
            result[inside[part.rows]] += source.term.amplitude * part.values
            bounds[inside[part.rows]] += amplitude * part.bounds * (1.0 + 1e-9)
        return result, bounds


def morton_order(points: FloatArray) -> IndexArray:
    """Return an order of points (r, d) in which neighbours stand together: (r,)."""
    low, high = points.min(axis=0), points.max(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        y = np.nan_to_num((points - low) / np.maximum((high - low).max(), 1e-300), posinf=0.0)
    codes: NDArray[np.int64] = morton_codes(np.clip(y, 0.0, 1.0), 20)
    return np.argsort(codes, kind="stable")


UNIT = 2.0**-53


class CrossSlopes:
    """Derivatives of K(T, X) V in T, for a kernel of one term, points X and weights V that stay.

    Derivatives in all features are of the kernel's evaluator where sources are near, whose roundings a certificate
    counts; the bounds here are of the rest.
    """

    def __init__(
        self, terms: Terms, evaluator: SlopeEvaluator, inputs: FloatArray, weights: FloatArray, tolerance: float
    ) -> None:
        (self._term,) = terms.terms
        self._evaluator, self._inputs, self._weights = evaluator, inputs, weights
        self._columns = evaluator.coordinates(inputs)
        share = tolerance / max(self._term.amplitude, 1e-300)
        self._sources = Sources(self._term, inputs, share, slopes=True)
        self._moments = self._sources.moments(weights)
        self._masses = np.abs(weights).sum(axis=0) * (1.0 + 1e-9)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        arrays = [self._inputs, self._weights, self._columns, *vars(self._moments).values()]
        return self._sources.nbytes + int(sum(array.nbytes for array in arrays))

    def at(self, targets: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return derivatives at targets (r, n_features) and bounds on the errors of their far parts, (r, t, d)."""
        term, t = self._term, self._weights.shape[1]
        features, scale = list(term.features), term.amplitude * np.array(term.scale)
        result, bounds = np.zeros((2, len(targets), t, targets.shape[1]))
        # Products of tiny numbers lose up to 2^-1075 each.
        lost = UNDERFLOW * np.maximum(1.0, np.abs(scale))
        bounds[:, :, features] = np.where(self._masses[:, None] > 0.0, lost, 0.0)
        rows = np.ascontiguousarray(targets[:, features])
        outside, _, steepest = self._sources.beyond(rows)
        bounds[np.ix_(outside, np.arange(t), np.array(features))] += (
            steepest[:, None, None] * self._masses[:, None] * np.abs(scale) * (1.0 + 1e-9)
        )
        inside = np.setdiff1d(np.arange(len(rows)), outside, assume_unique=True)
        if not len(inside):
            return result, bounds
        plan = _SlopePlan(self._sources, rows[inside])
        far, off = plan.slopes(self._moments)
        tree, leaves = plan.targets, plan.targets.leaves
        for leaf in range(len(leaves)):
            start, stop = int(leaves.start[leaf]), int(leaves.stop[leaf])
            chosen, places = tree.rows_of(start, stop)
            at = inside[chosen]
            ranges = [
                plan.sources.rows_of(int(first), int(last))[0]
                for first, last in zip(
                    plan.near_start[plan.near[leaf] : plan.near[leaf + 1]],
                    plan.near_stop[plan.near[leaf] : plan.near[leaf + 1]],
                    strict=True,
                )
            ]
            if ranges:
                near = np.concatenate(ranges)
                result[at] = self._evaluator.sums(
                    targets[at], np.ascontiguousarray(self._columns[:, near]), self._weights[near]
                )
            place = np.ix_(at, np.arange(t), np.array(features))
            parts = far[start:stop][places] * scale
            result[place] += parts
            bounds[place] += off[start:stop][places] * np.abs(scale) * (1.0 + 1e-9)
            bounds[place] += 2.0 * UNIT * (2.0 * np.abs(parts) + np.abs(result[place]))
        return result, bounds


class _SlopePlan(PiecePlan):
    """The plan of the far parts of derivatives at some targets, along the axes of a term."""

    def _translations(self, walk: Walk, level: int, pairs) -> Translations:  # type: ignore[no-untyped-def]
        canons, transforms = (sorted({kind[part] for kind in pairs.kinds}) for part in (0, 1))
        self._kinds = getattr(self, "_kinds", {})
        self._kinds[level] = {
            canons.index(canon) * len(transforms) + transforms.index(transform): (canon, transform[0])
            for canon, transform in pairs.kinds
        }
        return super()._translations(walk, level, pairs)

    def slopes(self, moments: Moments) -> tuple[FloatArray, FloatArray]:
        """Return derivatives of unit amplitude, in units of the profile, and their bounds.

        Both (points, t, d), in the order of the targets' tree.
        """
        tree, t, d, p = self.targets, moments.weights.shape[1], self.d, self.order
        out, bounds = np.zeros((2, tree.n_points, t, d))
        table, L, above = tree.leaves, np.zeros(0), np.zeros((0, t, d))
        for number, level in enumerate(tree.levels):
            cells = len(level)
            L_here, bound = np.zeros(cells * t * p**d + LANES), np.zeros((cells, t, d))
            if number in self.translations:
                part = self.translations[number]
                self._translate(part, number, moments, L_here)
                for axis in range(d):
                    bound[:, :, axis] = self._translate(self._along(part, number, axis), number, moments, np.zeros(0))
            if number:
                last, unused = tree.levels[number - 1], np.zeros(max(cells, len(tree.levels[number - 1])) * t)
                split_expansions(
                    0, len(last), last.child, last.children, level.coord, 0, 0, cells, self.down, d, p, t, L, unused,
                    L_here, np.zeros(cells * t),
                )  # fmt: skip
                bound += above[np.repeat(np.arange(len(last)), last.children)]
            leaves = np.flatnonzero(table.level == number)
            _leaf_slopes(leaves, tree.y, table.start, table.stop, table.cell, table.scale, table.coord, p, L_here, out)
            for leaf in leaves:
                bounds[table.start[leaf] : table.stop[leaf]] = bound[table.cell[leaf]]
            L, above = L_here, bound
        out /= self.side
        return out, bounds * (1.0 + 1e-9) + 4.0 * UNIT * np.abs(out)

    def _translate(self, part: Translations, number: int, moments: Moments, L: FloatArray) -> FloatArray:
        """Add pairs of a level to expansions `L`; return the bounds on their errors, (cells, t)."""
        cells, t = len(self.targets.levels[number]), moments.weights.shape[1]
        bound = np.zeros(cells * t)
        translate(
            0, cells, part.pairs, part.sources, part.keys, part.transforms, part.counts, part.operators,
            part.operators_at, part.places, part.source_places, part.signs, part.weights, part.remainder,
            moments.values, moments.groups, moments.mass, int(self.sources.at[number]), t, self.order**self.d,
            self.moments**self.d, L, bound,
        )  # fmt: skip
        return bound.reshape(cells, t)

    def _along(self, part: Translations, number: int, axis: int) -> Translations:
        """Return the pairs as ones that translate nothing, with the weights of the bound along an axis."""
        profile, parameter = self.term.profile, self.term.parameter
        most = int(np.diff(part.pairs).max(initial=0))
        count = len(part.counts) * part.transforms
        weights, remainder, none = np.zeros((count, self.group_count)), np.zeros(count), np.zeros(count, np.int64)
        for key, (canon, order) in self._kinds[number].items():
            expansion = self.shared.expansion(number, canon)
            if expansion.order == 0:
                remainder[key] = expansion.slope_left_out(profile, parameter, self.roundings)
            else:
                weights[key], remainder[key] = expansion.slope_weights(
                    profile, parameter, self.roundings, number, most, order.index(axis)
                )
        return replace(part, transforms=1, counts=none, operators_at=none, weights=weights, remainder=remainder)


@cached_njit(nogil=True)
def _leaf_slopes(leaves, y, start, stop, cell, scale, coord, p, L, out):  # type: ignore[no-untyped-def]
    """Put derivatives of the expansions of some leaves, times the root's side, to `out` (points, t, d)."""
    d, t = y.shape[0], out.shape[1]
    T, D = np.ones((d, p)), np.zeros((d, p))
    for k in leaves:
        for i in range(start[k], stop[k]):
            for f in range(d):
                x = y[f, i] * scale[k] - (2.0 * coord[k, f] + 1.0)
                # U_(k-1) and U_(k-2)
                one, two = 1.0, 0.0
                for a in range(1, p):
                    T[f, a] = x if a == 1 else fma(x + x, T[f, a - 1], -T[f, a - 2])
                    D[f, a] = a * one
                    one, two = fma(x + x, one, -two), one
            for j in range(t):
                base = (cell[k] * t + j) * p**d
                for axis in range(d):
                    total = 0.0
                    X = D[0] if axis == 0 else T[0]
                    for a in range(p):
                        if d == 1:
                            total += L[base + a] * X[a]
                            continue
                        Y, row = D[1] if axis == 1 else T[1], 0.0
                        for b in range(p):
                            if d == 2:
                                row += L[base + a * p + b] * Y[b]
                                continue
                            Z, line = D[2] if axis == 2 else T[2], 0.0
                            for c in range(p):
                                line += L[base + (a * p + b) * p + c] * Z[c]
                            row += line * Y[b]
                        total += row * X[a]
                    out[i, j, axis] = total * scale[k]
