"""Trees of cells: points in [0, 1)^d in Morton order, each cell cut into 2^d children until it has few points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.kernels.tiles.code_cache import cached_njit
from dkgp.operators.base import FloatArray

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
