"""Matrices of leaves that workers keep between passes over them, of which each has another noise.

From one step to the next of a classifier's mode (`dkgp.models.classification.near`) nothing changes of a leaf but
its noise: F and the lower half of K - F F' are made once. Within a step T is: it is made while sums are, and multiplied
once these are known. Both lie in `worker_tiles`, within the executor's budget, T first, since it is small for the time
that it saves; what has no room is made again, with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from dkgp.kernels.tiles.pages import fresh_array
from dkgp.operators.base import FloatArray
from dkgp.operators.blas import lapack
from dkgp.operators.cross.tasks import scratch
from dkgp.operators.keeping import Keeping, TileRequest, worker_tiles
from dkgp.operators.vecchia.leaves import Bundle, Leaves

# Of a bundle's number: which of the two is meant.
ROWS, MATRICES = 0, 1


@dataclass
class KeptMatrices:
    """Of a bundle, F for all of its samples (u, m), and the lower half of K - F F' of each leaf, row after row."""

    factor: FloatArray
    entries: FloatArray
    bounds: list[int]
    filled: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.factor.nbytes + self.entries.nbytes

    @classmethod
    def of(cls, bundle: Bundle, rank: int) -> KeptMatrices:
        """Room for them."""
        bounds = _bounds(len(places) * (len(places) + 1) // 2 for places in bundle.places)
        u = len(bundle.samples)
        return cls(fresh_array(u * rank, np.float64).reshape(u, rank), fresh_array(bounds[-1], np.float64), bounds)

    def pack(self, number: int, matrix: FloatArray) -> None:
        """Keep the lower half of a leaf's matrix (c, c)."""
        count = len(matrix)
        lapack("trttp", b"U", count, matrix, count, self._half(number))

    def unpacked(self, number: int, count: int) -> FloatArray:
        """A leaf's matrix (c, c), above its diagonal other numbers; valid until this thread's next call."""
        matrix = scratch("leaf", count, count, np.dtype(np.float64))
        lapack("tpttr", b"U", count, self._half(number), matrix, count)
        return matrix

    def _half(self, number: int) -> FloatArray:
        return self.entries[self.bounds[number] : self.bounds[number + 1]]


@dataclass
class KeptRows:
    """Of a bundle, T of each leaf, and the noise of its samples that these were made with; None until all are."""

    entries: FloatArray
    bounds: list[int]
    shapes: list[tuple[int, int]]
    noise: FloatArray | None = None
    filled = False  # they are made anew in every step, by one thread at a time

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.entries.nbytes

    @classmethod
    def of_bundle(cls, bundle: Bundle) -> KeptRows:
        """Room for them."""
        shapes = [(len(places) - halo, len(places)) for places, halo in zip(bundle.places, bundle.halos, strict=True)]
        bounds = _bounds(rows * count for rows, count in shapes)
        return cls(fresh_array(bounds[-1], np.float64), bounds, shapes)

    def of(self, number: int) -> FloatArray:
        """T of a leaf, or room for it: (g, h + g)."""
        return self.entries[self.bounds[number] : self.bounds[number + 1]].reshape(self.shapes[number])


@dataclass(frozen=True)
class KeptTerms:
    """Terms on which workers keep them for one model, and how much of their budget T of a worker's leaves takes."""

    label: str
    keeping: Keeping
    rows_bytes: int

    def rows(self, number: int, bundle: Bundle) -> AbstractContextManager[KeptRows | None]:
        """T of a bundle, for this thread alone while the context is open."""
        request = TileRequest(self.label, (number, ROWS), self.keeping, lambda: KeptRows.of_bundle(bundle))
        return worker_tiles().lent(request)

    def matrices(self, number: int, bundle: Bundle, rank: int) -> AbstractContextManager[KeptMatrices | None]:
        """F and K - F F' of a bundle, filled or to be filled."""
        request = TileRequest(self.label, (number, MATRICES), self.keeping, lambda: KeptMatrices.of(bundle, rank))
        # In the first step T of other bundles is still to come.
        reserved = self.rows_bytes if self.keeping.turn == 1 else 0
        return worker_tiles().lent(request, max(0, self.keeping.budget.bytes - reserved))


def rows_bytes(n: int, leaves: Leaves) -> int:
    """Bytes of T of all leaves, at most."""
    return 8 * n * (min(n, leaves.leaf) + min(n, leaves.halo))


def _bounds(sizes: Iterable[int]) -> list[int]:
    bounds = [0]
    for size in sizes:
        bounds.append(bounds[-1] + size)
    return bounds
