"""Sums over weighted points at other inputs, K(T, X) V, by cells: with a proven bound on each entry.

The tree of the points X, their moments and the expansions of the kernel are made once, in a root cell with room for
targets around X. Each piece of T gets a separate tree in the same root cell, with lists of pairs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.threads import single_threaded_blas
from dkgp.kernels.program import numpy_functions
from dkgp.kernels.terms import Term, Terms
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.cells.plan import Frame, Plan, Walk, build_expansions, padded
from dkgp.operators.cells.products import CellProducts, Moments, finish, join, up
from dkgp.operators.cells.proof import CHEAP_ORDERS, EXTRA, Expansion, group_count, groups
from dkgp.operators.cells.roundings import HIGHEST, displacement, half_table
from dkgp.operators.cells.tree import Tree, morton_codes

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
