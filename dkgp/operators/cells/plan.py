"""Plans of products by cells: trees, accepted pairs of cells with their proven expansions, and lists of near cells.

A plan depends on the term, the inputs and the tolerance alone, so all processes make the same one. A tree holds points
in [0, 1)^d in Morton order, each cell cut into 2^d children until it has few points.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.cluster.threads import in_parallel, process_threads, single_threaded_blas
from dkgp.errors import InputError
from dkgp.kernels.compiler import cached_njit
from dkgp.kernels.program import numpy_functions
from dkgp.kernels.small_products import LANES
from dkgp.kernels.terms import Term
from dkgp.operators.base import FloatArray
from dkgp.operators.cells.proof import CHEAP_ORDERS, EXTRA, ORDERS, Expansion, group_count, groups
from dkgp.operators.cells.roundings import HIGHEST, Roundings, displacement, half_table
from dkgp.operators.cells.sweeps import CHUNK, RUN

# Deepest level by dimension: a Morton code of 62 bits has room for it, and deeper ones would not pay.
DEEPEST = {1: 30, 2: 30, 3: 20}


@dataclass(frozen=True)
class Level:
    """Cells of one level in Morton order; a cell's children follow each other on the next level."""

    start: NDArray[np.int32]  # places of a cell's points
    stop: NDArray[np.int32]
    coord: NDArray[np.int32]  # (cells, d)
    child: NDArray[np.int32]  # number of the first child on the next level
    children: NDArray[np.int8]  # none of a leaf

    @property
    def leaf(self) -> NDArray[np.bool_]:
        """Marks of the cells that are leaves."""
        leaves: NDArray[np.bool_] = self.children == 0
        return leaves

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Leaves:
    """Cells without children, in the order of their points."""

    start: NDArray[np.int32]
    stop: NDArray[np.int32]
    cell: NDArray[np.int32]  # number among the cells of its level
    level: NDArray[np.int8]
    coord: NDArray[np.int32]
    scale: FloatArray  # y scale - (2 coord + 1) are the coordinates of y in the cell

    def __len__(self) -> int:
        return len(self.start)


class Tree:
    """Cells of points y (n, d) in [0, 1)^d, one above the other; a single one until it is grown.

    Points that are equal are one point. `firsts` are the places where the rows of each point begin in `order`, the rows
    sorted by point; None where all are distinct.
    """

    def __init__(self, y: FloatArray) -> None:
        n, d = y.shape
        self._bits = DEEPEST[d]
        code = morton_codes(np.ascontiguousarray(y), self._bits)
        order = np.argsort(code, kind="stable")
        code, sorted_y = code[order], y[order]
        new = np.ones(n, bool)
        new[1:] = (sorted_y[1:] != sorted_y[:-1]).any(axis=1)
        self.order = order.astype(np.int32 if n < 2**31 else np.int64)
        self.firsts: NDArray[Any] | None = None
        if not new.all():
            self.firsts = np.flatnonzero(new)
            code, sorted_y = code[self.firsts], sorted_y[self.firsts]
        self.y = np.ascontiguousarray(sorted_y.T)
        self.d, self.n_points = d, self.y.shape[1]
        self._code: NDArray[np.int64] | None = code
        none = np.zeros(1, np.int32)
        self.levels = [
            Level(none, np.array([self.n_points], np.int32), np.zeros((1, d), np.int32), none, np.zeros(1, np.int8))
        ]
        self._settle()

    def grow(self, leaf: int) -> None:
        """Split cells of more than `leaf` points until the deepest level."""
        assert self._code is not None
        start, stop, coord = self.levels[0].start, self.levels[0].stop, self.levels[0].coord
        self.levels = []
        for level in range(self._bits + 1):
            splits = (stop - start > leaf) & (level < self._bits)
            shift = self.d * max(self._bits - level - 1, 0)
            below = _split(start, stop, coord, splits, self._code, shift)
            self.levels.append(Level(start, stop, coord, below[3], below[4]))
            if not splits.any():
                break
            start, stop, coord = below[:3]
        self._settle()

    def finish(self) -> None:
        """Release the arrays that only `grow` needs."""
        self._code = None

    def cut(self, depth: int) -> None:
        """Drop the levels below `depth`."""
        if depth < len(self.levels) - 1:
            last = self.levels[depth]
            none = np.zeros(len(last), np.int8)
            self.levels = [*self.levels[:depth], Level(last.start, last.stop, last.coord, last.child, none)]
            self._settle()

    def _settle(self) -> None:
        counts = [len(level) for level in self.levels]
        # Number of each level's first cell among all cells.
        self.at = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        chosen = [np.flatnonzero(level.leaf) for level in self.levels]
        start = np.concatenate([level.start[rows] for level, rows in zip(self.levels, chosen, strict=True)])
        by_place = np.argsort(start, kind="stable")

        def joined(parts: list[Any]) -> Any:
            return np.concatenate(parts)[by_place]

        pairs = list(zip(self.levels, chosen, strict=True))
        self.leaves = Leaves(
            start[by_place],
            joined([level.stop[rows] for level, rows in pairs]),
            joined([rows.astype(np.int32) for rows in chosen]),
            joined([np.full(len(rows), number, np.int8) for number, rows in enumerate(chosen)]),
            joined([level.coord[rows] for level, rows in pairs]),
            joined([np.full(len(rows), 2.0 ** (number + 1)) for number, rows in enumerate(chosen)]),
        )

    @property
    def n_cells(self) -> int:
        """Number of cells of all levels."""
        return int(self.at[-1])

    @property
    def most_points(self) -> int:
        """Points of the largest leaf."""
        return int((self.leaves.stop - self.leaves.start).max(initial=0))

    @property
    def most_equal(self) -> int:
        """Rows of the point that most rows are equal to."""
        return 1 if self.firsts is None else int(np.diff(self.firsts, append=len(self.order)).max())

    @property
    def nbytes(self) -> int:
        """Bytes of points, cells and leaves."""
        arrays = [self.order, self.y, *vars(self.leaves).values()]
        arrays += [array for level in self.levels for array in vars(level).values()]
        arrays += [] if self.firsts is None else [self.firsts]
        return int(sum(array.nbytes for array in arrays))

    def gather(self, V: FloatArray) -> FloatArray:
        """Return the weights of the points, in their order, from those of the rows: (n_points, t)."""
        firsts = np.arange(len(self.order)) if self.firsts is None else self.firsts
        return np.asarray(_gather(np.ascontiguousarray(V), self.order, firsts))

    def rows_of(self, start: int, stop: int) -> tuple[NDArray[Any], NDArray[Any] | slice]:
        """Return the rows of the points from `start` up to `stop`, and each row's place among these points."""
        if self.firsts is None:
            return self.order[start:stop], slice(None)
        ends = np.append(self.firsts, len(self.order))
        counts = np.diff(ends[start : stop + 1])
        return self.order[ends[start] : ends[stop]], np.repeat(np.arange(stop - start), counts)


@cached_njit(nogil=True)
def _gather(V, order, firsts):  # type: ignore[no-untyped-def]
    """Sums of the rows of each point, in their order."""
    out = np.zeros((firsts.shape[0], V.shape[1]))
    for k in range(firsts.shape[0]):
        for i in range(firsts[k], firsts[k + 1] if k + 1 < firsts.shape[0] else order.shape[0]):
            for j in range(V.shape[1]):
                out[k, j] += V[order[i], j]
    return out


@cached_njit(nogil=True)
def morton_codes(y, bits):  # type: ignore[no-untyped-def]
    """Morton codes: the bits of all coordinates in turn."""
    n, d = y.shape
    code = np.zeros(n, np.int64)
    scale, last = 2.0**bits, (1 << bits) - 1
    for i in range(n):
        c = 0
        for f in range(d):
            q = min(max(int(y[i, f] * scale), 0), last)
            for b in range(bits):
                c |= ((q >> b) & 1) << (b * d + f)
        code[i] = c
    return code


@cached_njit(nogil=True)
def _split(start, stop, coord, splits, code, shift):  # type: ignore[no-untyped-def]
    """Children of the cells that split: their points' places and coordinates, and each cell's first and count."""
    n, d = coord.shape
    most = 0
    for c in range(n):
        if splits[c]:
            most += min(1 << d, stop[c] - start[c])
    starts, stops, coords = np.empty(most, np.int32), np.empty(most, np.int32), np.empty((most, d), np.int32)
    first, count = np.zeros(n, np.int32), np.zeros(n, np.int8)
    k = 0
    for c in range(n):
        if not splits[c]:
            continue
        first[c] = k
        i = start[c]
        while i < stop[c]:
            key = code[i] >> shift
            low, high = i, stop[c]
            while low < high:
                middle = (low + high) // 2
                if (code[middle] >> shift) > key:
                    high = middle
                else:
                    low = middle + 1
            starts[k], stops[k] = i, low
            for f in range(d):
                coords[k, f] = 2 * coord[c, f] + ((key >> f) & 1)
            k += 1
            count[c] += 1
            i = low
    return starts[:k].copy(), stops[:k].copy(), coords[:k].copy(), first, count


# Most distinct points of a leaf: one of these, from the most on; those above 512 in three dimensions alone.
LEAF = (2048, 1024, 512, 256, 128, 64, 32, 16)
# Nanoseconds of a near entry and of a pair of cells, on some processor: for choices, which are the same on all.
_SINGLE_ENTRY, _DOUBLE_ENTRY, _PAIR = 0.6, 1.2, 80.0
# Overhead of the loop over a leaf's targets, in points.
_SHORT_LOOP = 24.0
# Bytes of moments for each point and column of weights, above which leaves are not made smaller.
_MOMENT_BYTES = 200.0
# Share of the tolerance that near entries in single precision may take, and the side up to which they may be.
_NEAR_SHARE = 0.1
_FARTHEST_SINGLE = 1e14
# Inputs further apart than this, in units of the profile, are brought together to it: neighbours on the deepest level
# of a tree are still so far apart that a kernel is zero.
_FARTHEST = 1e16
# Work of an entry of a near pair, in multiply-adds.
_ENTRY_WORK = 32
# Pairs of cells that share an expansion, from which on it may have any order.
_MANY_PAIRS = 600
# Threads that build expansions of three dimensions: the slowest takes a third of the time of all, and the largest have
# some 300 MB each meanwhile.
_MOST_THREADS = 4
# Offsets of cells that a table of all of them may have.
_LARGEST_TABLE = 2**20


# Order and reflection of the axes that take an offset to that of its class.
_Transform: TypeAlias = tuple[tuple[int, ...], tuple[bool, ...]]


@dataclass(frozen=True)
class Translations:
    """Accepted pairs of cells of one level; arrays as `dkgp.operators.cells.sweeps.translate` takes them."""

    pairs: NDArray[np.int64]
    sources: NDArray[np.int32]
    keys: NDArray[np.int32]
    transforms: int
    counts: NDArray[np.int64]
    operators: FloatArray
    operators_at: NDArray[np.int64]
    places: NDArray[np.int32]
    source_places: NDArray[np.int32]
    signs: FloatArray
    weights: FloatArray
    remainder: FloatArray

    @property
    def work(self) -> FloatArray:
        """Multiply-adds of each target cell: (cells,)."""
        each = (self.counts.astype(np.float64) ** 2)[self.keys // self.transforms]
        sums = np.concatenate([[0.0], np.cumsum(each)])
        work: FloatArray = np.diff(sums[self.pairs])
        return work

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return int(sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray)))


@dataclass(frozen=True)
class Frame:
    """The least corner of all inputs of a term, and factors that map them to [0, 1)^d and to the profile's units."""

    lower: FloatArray
    factors: FloatArray
    side: float
    extent: float  # the side, but for inputs that were brought together

    @classmethod
    def around(cls, term: Term, blocks: list[FloatArray]) -> Frame:
        """The frame of some inputs (n, d)."""
        lower = np.min([block.min(axis=0) for block in blocks], axis=0)
        upper = np.max([block.max(axis=0) for block in blocks], axis=0)
        # Exactly, so that nothing overflows.
        extents = [
            (Fraction(float(high)) - Fraction(float(low))) * Fraction(factor)
            for low, high, factor in zip(lower, upper, term.scale, strict=True)
        ]
        longest = max(extents) * Fraction(1 + 2**-20) or Fraction(1)
        side = float(min(longest, Fraction(_FARTHEST)))
        formula = term.profile.formula
        assert formula is not None
        if longest > _FARTHEST and formula(_FARTHEST**2, term.parameter, numpy_functions(np.float64)) > 0.0:
            raise InputError(
                f"products by cells take inputs up to {_FARTHEST:g} length scales apart for a kernel that falls "
                "slowly, such as the rational quadratic; these are further apart"
            )
        factors = [float(Fraction(factor) / longest) for factor in term.scale]
        return cls(lower, np.array(factors), side, float(min(longest, Fraction(10) ** 300)))

    def place(self, rows: FloatArray) -> FloatArray:
        """Map inputs to [0, 1)^d."""
        return np.asarray((rows - self.lower) * self.factors)


class Plan:
    """Plan of products with one term of a kernel, for any weights.

    Parameters
    ----------
    term : Term
        The plan is of unit amplitude; callers multiply by the term's.
    inputs : (n, n_features) array_like
        Sources; targets too by default.
    tolerance : float
        Error of an entry relative to the sum of the magnitudes of the weights, where these are even.
    targets : (r, n_features) array_like, optional
    leaf : int, optional
        Most points of a leaf.

    Attributes
    ----------
    sources, targets : Tree
        One object where targets are the sources.
    near_entries : int
        Entries that a product evaluates for each column of weights.
    """

    def __init__(
        self,
        term: Term,
        inputs: ArrayLike,
        tolerance: float,
        targets: ArrayLike | None = None,
        *,
        leaf: int | None = None,
    ) -> None:
        features = list(term.features)
        rows = np.asarray(inputs, np.float64)[:, features]
        asked = None if targets is None else np.asarray(targets, np.float64)[:, features]
        self.term, self.d, self.tolerance = term, len(features), tolerance
        self._frame = Frame.around(term, [block for block in (rows, asked) if block is not None and len(block)])
        # Inputs less the least one, before they are scaled: one rounding of a number below the extent.
        self.displacement = displacement(self._frame.extent, self._frame.side, self.d)
        self.sources = Tree(self._frame.place(rows))
        self.targets = self.sources if asked is None else Tree(self._frame.place(asked))
        best = leaf or self._cheapest_leaf()
        for tree in {id(tree): tree for tree in (self.sources, self.targets)}.values():
            tree.grow(best)
            tree.finish()
        walk = Walk(self)
        far, near = walk.run()
        depth = max([0, *(level for level, pairs in far.items() if len(pairs.a)), *(n.level for n in near)])
        self.targets.cut(depth)
        if self.sources is not self.targets:
            self.sources.cut(max([0, *far]))
        self._list_near(near)
        self._settle(walk, far)

    def _list_near(self, near: list[_Near]) -> None:
        nothing = np.zeros(0, np.int32)
        start, stop, source_start, source_stop = (
            np.concatenate([nothing, *(getattr(pairs, name) for pairs in near)])
            for name in ("start", "stop", "source_start", "source_stop")
        )
        places = self.targets.leaves.start
        self.near, self.near_start, self.near_stop = _near_lists(
            len(places), np.searchsorted(places, start), np.searchsorted(places, stop), source_start, source_stop
        )

    def _orders(self, walk: Walk) -> tuple[int, int]:
        """Return the orders of the targets' expansions and of the sources' moments."""
        order = max([1, *(expansion.order for expansion in walk.classes.values())])
        return order, min(order + EXTRA, HIGHEST)

    def _settle(self, walk: Walk, far: dict[int, _Pairs]) -> None:
        d = self.d
        self.order, self.moments = self._orders(walk)
        self.groups, self.group_count = groups(self.moments, d), group_count(self.moments, d)
        most = self.sources.most_points
        self.roundings = Roundings(
            d,
            self.order,
            self.moments,
            min(most, CHUNK) + -(-most // CHUNK) + self.sources.most_equal,
            len(self.sources.levels),
            len(self.targets.levels),
            self.displacement,
        )
        self.translations = {level: self._translations(walk, level, pairs) for level, pairs in far.items()}
        sizes = self.near_stop - self.near_start
        leaves = self.targets.leaves
        self._near_sources = np.diff(np.concatenate([[0], np.cumsum(sizes.astype(np.int64))])[self.near])
        runs = np.diff(np.concatenate([[0], np.cumsum(-(-sizes.astype(np.int64) // RUN))])[self.near])
        self.near_entries = int((self._near_sources * (leaves.stop - leaves.start)).sum())
        self._choose_near_type(RUN + int(runs.max(initial=0)) + self.sources.most_equal)
        halves = half_table(self.moments)
        self.up = padded(halves.transpose(0, 2, 1))
        self.down = padded(halves[:, : self.order, : self.order])

    def _choose_near_type(self, additions: int) -> None:
        """Take single precision for near entries where that costs little of the tolerance.

        Relative to a leaf's centre, coordinates of its points are below half its diagonal h, those of a source below
        h + r: rounded, they change an entry by at most |dk/dr| 2 h and r |dk/dr|, twice the bulge, in units of 2**-24.
        """
        profile, parameter, d = self.term.profile, self.term.parameter, self.d
        double = self.roundings.near_error(profile, parameter, additions)
        bulge, steepest = float(profile.bulge(0.0, parameter)), float(profile.steepest(0.0, parameter))
        counted = bulge * (d + 14.0) + profile.rounding + RUN + 6.0
        sides = self._frame.side * 0.5 ** np.arange(len(self.targets.levels))
        single = double + 1.02 * 2.0**-24 * (counted + steepest * math.sqrt(d) * sides)
        shares = self._near_sources / max(self.sources.n_points, 1)
        costs = float((single[self.targets.leaves.level] * shares).max(initial=0.0))
        fits = costs <= _NEAR_SHARE * self.tolerance and self._frame.side < _FARTHEST_SINGLE
        self.near_type = np.dtype(np.float32 if fits else np.float64)
        self.near_errors: FloatArray = np.asarray(single if fits else np.full(len(sides), double))

    def _cheapest_leaf(self) -> int:
        """Choose the size of leaves by the work of near entries and of translations, in nanoseconds, from counts."""
        d, tree, best = self.d, self.sources, (math.inf, LEAF[-1])
        single = self.tolerance > 1e-8
        walk = Walk(self)
        sizes: dict[tuple[int, int], tuple[int, int]] = {}
        divided = d == 3 and math.isinf(self.term.profile.support)
        for leaf in LEAF:
            if leaf > 512 and d < 3:
                continue
            tree.grow(leaf)
            points = (tree.leaves.stop - tree.leaves.start).astype(np.float64)
            cost, order, refused = 1e3 * len(points), 1, 0.0
            for number, level in enumerate(tree.levels):
                # Pairs of a cell; those that are refused are divided. Few of a compact kernel's are.
                pairs = min(6.0**d - 3.0**d + refused, len(level) - 3.0**d)
                if number < 2 or pairs <= 0:
                    continue
                share = min(1.0, pairs / len(level))
                if (number, len(level)) not in sizes:
                    # As many pairs of an offset such as (2, 1, 1) as a level of whole cubes has.
                    alike = d * 2**d * len(level)
                    canon = (2, *[1] * (d - 1))
                    sizes[number, len(level)] = walk.size(number, canon, 0.25 * self.tolerance / share, alike)
                p, q = sizes[number, len(level)]
                refused = 2.0**d * pairs if p < 0 and divided else 0.0
                order = max(order, p)
                cost += len(level) * pairs * (_PAIR + 2.0 * q + 0.04 * q * q)
            near = 3.0**d + refused / 2.0**d
            entry = _SINGLE_ENTRY if single else _DOUBLE_ENTRY
            cost += entry * near * float((points * (points + _SHORT_LOOP)).sum())
            moments = min(order + EXTRA, HIGHEST)
            cost += tree.n_cells * 0.1 * d * float(moments) ** (d + 1)
            fits = 8.0 * tree.n_cells * moments**d <= _MOMENT_BYTES * tree.n_points
            if cost > 1.1 * best[0] or (not fits and best[0] < math.inf):
                break
            best = min(best, (cost, leaf))
        return best[1]

    def _translations(self, walk: Walk, level: int, pairs: _Pairs) -> Translations:
        canons = sorted({canon for canon, _ in pairs.kinds})
        transforms = sorted({transform for _, transform in pairs.kinds})
        number = {canon: place for place, canon in enumerate(canons)}
        place_of = {transform: place for place, transform in enumerate(transforms)}
        key_of_kind = np.array(
            [number[canon] * len(transforms) + place_of[transform] for canon, transform in pairs.kinds], np.int32
        )
        cells = len(self.targets.levels[level])
        starts, sources, keys = _by_target(pairs.a, pairs.b, key_of_kind[pairs.kind], cells)
        most = int(np.diff(starts).max(initial=0))
        counts = np.zeros(len(canons), np.int64)
        operators, at = [np.zeros(0)], np.zeros(len(canons), np.int64)
        weights, remainder = np.zeros((len(canons), self.group_count)), np.zeros(len(canons))
        profile, parameter = self.term.profile, self.term.parameter
        for place, canon in enumerate(canons):
            expansion = walk.classes[level, canon]
            at[place] = sum(operator.size for operator in operators)
            if expansion.order == 0:
                remainder[place] = expansion.left_out(profile, parameter, self.roundings)
                continue
            assert expansion.operator is not None
            counts[place] = expansion.kept.shape[1]
            operators.append(padded(expansion.operator[None]))
            weights[place], remainder[place] = expansion.row_weights(profile, parameter, self.roundings, level, most)
        places, source_places, signs = self._places(walk, level, canons, transforms)
        return Translations(
            starts, sources, keys, len(transforms), counts, np.concatenate(operators), at, places, source_places, signs,
            weights, remainder,
        )  # fmt: skip

    def _places(
        self, walk: Walk, level: int, canons: list[tuple[int, ...]], transforms: list[_Transform]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], FloatArray]:
        """Return places in targets' and sources' coefficients, and signs, of classes' coefficients by transforms."""
        places, source_places, signs = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)], [np.zeros(0)]
        for canon, (order, reflected) in itertools.product(canons, transforms):
            index = walk.classes[level, canon].kept
            original = np.empty_like(index)
            original[list(order)] = index
            for table, full in ((places, self.order), (source_places, self.moments)):
                table.append(np.ravel_multi_index(tuple(original), (full,) * self.d).astype(np.int32))
            axes = [axis for axis in range(self.d) if reflected[axis]]
            signs.append(1.0 - 2.0 * (original[axes].sum(axis=0) % 2))
        return np.concatenate(places), np.concatenate(source_places), np.concatenate(signs)

    @property
    def side(self) -> float:
        """Side of the root cell in the profile's units."""
        return self._frame.side

    @property
    def flops(self) -> int:
        """Floating-point operations of all translations of a column of weights."""
        return int(sum(2.0 * translation.work.sum() for translation in self.translations.values()))

    @property
    def nbytes(self) -> int:
        """Bytes of the plan."""
        arrays = [self.near, self.near_start, self.near_stop, self._near_sources]
        trees = {id(tree): tree for tree in (self.sources, self.targets)}
        total = sum(array.nbytes for array in arrays) + sum(tree.nbytes for tree in trees.values())
        return int(total + sum(translation.nbytes for translation in self.translations.values()))

    def ranges(self, count: int) -> list[tuple[int, int]]:
        """Cut the target leaves into at most `count` ranges of neighbours with about equal work."""
        leaves = self.targets.leaves
        points = (leaves.stop - leaves.start).astype(np.float64)
        work = points * (self._near_sources * _ENTRY_WORK + self.order**self.d)
        for number, translation in self.translations.items():
            level = self.targets.levels[number]
            first = np.searchsorted(leaves.start, level.start)
            share = translation.work / np.maximum(np.searchsorted(leaves.start, level.stop) - first, 1)
            # Cells of a level lie apart from each other where leaves of higher levels are between them.
            steps = np.zeros(len(leaves) + 1)
            np.add.at(steps, first, share)
            np.add.at(steps, np.searchsorted(leaves.start, level.stop), -share)
            work += np.cumsum(steps)[:-1]
        return _cut(work, count)

    def source_ranges(self, count: int) -> list[tuple[int, int]]:
        """Cut the source leaves into at most `count` ranges of neighbours with about equal numbers of points."""
        leaves = self.sources.leaves
        return _cut((leaves.stop - leaves.start).astype(np.float64), count)


def _cut(work: FloatArray, count: int) -> list[tuple[int, int]]:
    if not len(work):
        return []
    sums = np.cumsum(work + 1e-3 * work.mean() + 1e-300)
    ends = np.searchsorted(sums, sums[-1] * (np.arange(1, count) / count)) + 1
    places = np.unique(np.concatenate([[0], np.minimum(ends, len(work)), [len(work)]]))
    return [(int(first), int(last)) for first, last in itertools.pairwise(places)]


def padded(tables: Any) -> FloatArray:
    """Tables (k, a, b), rows in whole vectors, flat."""
    values = np.asarray(tables, np.float64)
    width = -(-values.shape[2] // LANES) * LANES
    out = np.zeros((*values.shape[:2], width))
    out[:, :, : values.shape[2]] = values
    return out.ravel()


# ------------------------------------------------------------------------------------------------------------ the walk


@dataclass(frozen=True)
class _Pairs:
    """Accepted pairs: cells a of the targets, b of the sources, and which of the `kinds` each is."""

    a: NDArray[np.int32]
    b: NDArray[np.int32]
    kind: NDArray[np.int32]
    kinds: list[tuple[tuple[int, ...], _Transform]]


@dataclass(frozen=True)
class _Near:
    level: int
    start: NDArray[np.int32]
    stop: NDArray[np.int32]
    source_start: NDArray[np.int32]
    source_stop: NDArray[np.int32]


class Walk:
    """The walk down both trees at once, level by level, over the pairs of cells that are not accepted yet."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.classes: dict[tuple[int, tuple[int, ...]], Expansion] = {}

    def run(self) -> tuple[dict[int, _Pairs], list[_Near]]:
        """Return the accepted pairs by level, and the pairs with a leaf."""
        plan = self.plan
        far: dict[int, _Pairs] = {}
        near: list[_Near] = []
        a = b = np.zeros(1, np.int32)
        levels = min(len(plan.targets.levels), len(plan.sources.levels))
        for number in range(levels):
            target, source = plan.targets.levels[number], plan.sources.levels[number]
            key, offsets = _offsets(a, b, target.coord, source.coord)
            tolerances = self._tolerances(number, a, b, key, np.abs(offsets).max(axis=1) >= 2)
            outcome = np.full(len(offsets), -2, np.int32)
            kinds: list[Any] = []
            canons = [tuple(sorted((abs(part) for part in offset), reverse=True)) for offset in offsets.tolist()]
            counts: dict[tuple[int, ...], int] = defaultdict(int)
            for canon, count in zip(canons, np.bincount(key, minlength=len(offsets)).tolist(), strict=True):
                counts[canon] += count
            self._build(number, tolerances, counts)
            for value, (offset, canon) in enumerate(zip(offsets.tolist(), canons, strict=True)):
                expansion = self.classes[number, canon]
                # Entries are zero wherever roundings have put the points.
                if expansion.order == 0 and expansion.nearest > plan.term.profile.support + plan.displacement:
                    outcome[value] = -1
                elif expansion.order >= 0:
                    order = tuple(sorted(range(plan.d), key=lambda axis: -abs(offset[axis])))
                    outcome[value] = len(kinds)
                    kinds.append((canon, (order, tuple(part < 0 for part in offset))))
            result = outcome[key]
            chosen = result >= 0
            if chosen.any():
                far[number] = _Pairs(a[chosen], b[chosen], result[chosen], kinds)
            rest = result == -2
            a, b = a[rest], b[rest]
            stops = (target.children[a] == 0) | (source.children[b] == 0) | (number == levels - 1)
            if stops.any():
                x, y = a[stops], b[stops]
                near.append(_Near(number, target.start[x], target.stop[x], source.start[y], source.stop[y]))
            a, b = a[~stops], b[~stops]
            if not len(a):
                break
            a, b = _children(a, b, target.child, target.children, source.child, source.children)
        return far, near

    def _build(self, number: int, tolerances: tuple[float, float], counts: dict[tuple[int, ...], int]) -> None:
        """Build the expansions of a level; those of near offsets take longest and come first."""
        canons = sorted(counts)

        def build(place: int) -> None:
            canon = canons[place]
            self._expansion(number, canon, tolerances[canon[0] >= 2], counts[canon])

        build_expansions(build, len(canons), self.plan.d)

    def _tolerances(
        self, number: int, a: NDArray[np.int32], b: NDArray[np.int32], key: NDArray[np.int32], apart: NDArray[np.bool_]
    ) -> tuple[float, float]:
        """Errors of pairs of a level, adjacent and apart, for a unit of weights: the larger, the less these can be."""
        target, source = self.plan.targets.levels[number], self.plan.sources.levels[number]
        weights = _most_weights(a, b, key, apart, source.start, source.stop, len(target))
        # The deepest levels have nearly all pairs and get nearly all of the tolerance.
        allowed = 0.25 * self.plan.tolerance * self.plan.sources.n_points
        return allowed / max(int(weights[0]), 1), allowed / max(int(weights[1]), 1)

    def size(self, number: int, canon: tuple[int, ...], tolerance: float, pairs: int) -> tuple[int, int]:
        """Return the order of an expansion, which is not kept, and the number of its coefficients."""
        expansion = self._expansion(number, canon, tolerance, pairs)
        self.classes.clear()
        return expansion.order, expansion.kept.shape[1]

    def _expansion(self, number: int, canon: tuple[int, ...], tolerance: float, pairs: int) -> Expansion:
        key = number, canon
        if key not in self.classes:
            side = self.plan.side * 0.5**number
            # Its products are exact: BLAS is as good as any other.
            term = self.plan.term
            with single_threaded_blas():
                cap = (ORDERS if pairs >= _MANY_PAIRS else CHEAP_ORDERS)[self.plan.d]
                self.classes[key] = Expansion(term.profile, term.parameter, side, canon, tolerance, cap=cap)
        return self.classes[key]


def build_expansions(build: Callable[[int], None], count: int, d: int) -> None:
    """Call `build(0) .. build(count - 1)`, by several threads in three dimensions, where it takes long."""
    in_parallel(build, count, min(_MOST_THREADS, process_threads()) if d == 3 else 1)


def _offsets(
    a: NDArray[np.int32], b: NDArray[np.int32], target: NDArray[np.int32], source: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Number the offsets of pairs of cells: each pair's number, and all offsets (k, d) by their numbers.

    Cells at the range of a kernel may be as far apart as the deepest level has cells, which no table has room for.
    """
    d = target.shape[1]
    code, radius = _codes(a, b, target, source)
    width = 2 * int(radius) + 1
    if width**d <= _LARGEST_TABLE:
        present = np.flatnonzero(np.bincount(code, minlength=width**d))
        numbers = np.zeros(width**d, np.int32)
        numbers[present] = np.arange(len(present))
        key = numbers[code]
    else:
        present, inverse = np.unique(code, return_inverse=True)
        key = inverse.astype(np.int32)
    return key, np.stack(np.unravel_index(present, (width,) * d), axis=1) - radius


@cached_njit(nogil=True)
def _codes(a, b, target, source):  # type: ignore[no-untyped-def]
    """Encode each offset of a pair of cells as one number; return these, and the largest component of any offset."""
    d, radius = target.shape[1], 0
    for i in range(a.shape[0]):
        for f in range(d):
            radius = max(radius, abs(target[a[i], f] - source[b[i], f]))
    code = np.empty(a.shape[0], np.int64)
    for i in range(a.shape[0]):
        value = 0
        for f in range(d):
            value = value * (2 * radius + 1) + target[a[i], f] - source[b[i], f] + radius
        code[i] = value
    return code, radius


@cached_njit(nogil=True)
def _most_weights(a, b, key, apart, start, stop, cells):  # type: ignore[no-untyped-def]
    """Most points of the sources of one target: of all, and of those whose offsets are `apart`."""
    total = np.zeros((cells, 2), np.int64)
    for i in range(a.shape[0]):
        points = stop[b[i]] - start[b[i]]
        total[a[i], 0] += points
        if apart[key[i]]:
            total[a[i], 1] += points
    most = np.zeros(2, np.int64)
    for c in range(cells):
        most[0], most[1] = max(most[0], total[c, 0]), max(most[1], total[c, 1])
    return most


@cached_njit(nogil=True)
def _children(a, b, child_a, children_a, child_b, children_b):  # type: ignore[no-untyped-def]
    """All pairs of children of pairs of cells."""
    count = 0
    for i in range(a.shape[0]):
        count += children_a[a[i]] * children_b[b[i]]
    x, y = np.empty(count, np.int32), np.empty(count, np.int32)
    k = 0
    for i in range(a.shape[0]):
        for u in range(children_a[a[i]]):
            for v in range(children_b[b[i]]):
                x[k], y[k] = child_a[a[i]] + u, child_b[b[i]] + v
                k += 1
    return x, y


@cached_njit(nogil=True)
def _by_target(a, b, key, cells):  # type: ignore[no-untyped-def]
    """Sort pairs by target, in their order: where each target's begin, their sources and keys."""
    starts = np.zeros(cells + 1, np.int64)
    for i in range(a.shape[0]):
        starts[a[i] + 1] += 1
    for c in range(cells):
        starts[c + 1] += starts[c]
    place = starts[:-1].copy()
    sources, keys = np.empty(a.shape[0], np.int32), np.empty(a.shape[0], np.int32)
    for i in range(a.shape[0]):
        at = place[a[i]]
        sources[at], keys[at] = b[i], key[i]
        place[a[i]] += 1
    return starts, sources, keys


@cached_njit(nogil=True)
def _near_lists(n, first, last, source_start, source_stop):  # type: ignore[no-untyped-def]
    """Sort the ranges of sources by each of the n leaves that they are near to, and join those that touch.

    Pair i is near to leaves from `first[i]` up to `last[i]`.
    """
    count = np.zeros(n + 1, np.int64)
    for i in range(first.shape[0]):
        for k in range(first[i], last[i]):
            count[k + 1] += 1
    for k in range(n):
        count[k + 1] += count[k]
    place = count[:-1].copy()
    begin, end = np.empty(count[n], np.int32), np.empty(count[n], np.int32)
    for i in range(first.shape[0]):
        for k in range(first[i], last[i]):
            # Kept sorted: lists are short.
            j = place[k]
            while j > count[k] and begin[j - 1] > source_start[i]:
                begin[j], end[j] = begin[j - 1], end[j - 1]
                j -= 1
            begin[j], end[j] = source_start[i], source_stop[i]
            place[k] += 1
    near = np.zeros(n + 1, np.int64)
    used = 0
    for k in range(n):
        base = used
        for j in range(count[k], count[k + 1]):
            if used > base and end[used - 1] == begin[j]:
                end[used - 1] = end[j]
            else:
                begin[used], end[used] = begin[j], end[j]
                used += 1
        near[k + 1] = used
    return near, begin[:used].copy(), end[:used].copy()
