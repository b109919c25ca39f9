"""Columns of K(X, Z) in memory that is used again, and those of a growing basis, which workers keep.

Every page of new memory costs time, on virtual machines several times that of the entries written to it, so a thread
uses the same memory for all its pieces.

The columns of a growing basis are kept in slabs of `SLAB_COLUMNS` for each run of blocks, within a worker's budget of
tiles (`dkgp.operators.kept_tiles`). Kept columns are read; those without room, or whose worker died, are evaluated.
Slabs have the same layout and pass the same operations either way, so that bits do not depend on it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.kernels import Features, TileEvaluator
from dkgp.kernels.tiles.pages import fresh_array
from dkgp.operators.base import FloatArray
from dkgp.operators.keeping import Keeping
from dkgp.operators.kept_tiles import TileRequest, worker_tiles

SLAB_COLUMNS = 256

_threads = threading.local()


def scratch(name: str, rows: int, columns: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Memory of this thread, by name: (rows, columns), values left over; valid until the next call for the name."""
    arrays, key = _threads.__dict__, f"{name} {dtype}"
    if key not in arrays or len(arrays[key]) < rows * columns:
        arrays[key] = np.empty(rows * columns, dtype)
    numbers: NDArray[Any] = arrays[key]
    return numbers[: rows * columns].reshape(rows, columns)


def columns_between(evaluator: TileEvaluator, prototypes: Features, rows: Features, name: str) -> NDArray[Any]:
    """K(X_b, Z): (b, m), row by row in this thread's memory of that name, padded to whole vectors."""
    out = scratch(name, rows.n, prototypes.values.shape[1], evaluator.dtype)
    evaluator.fill(prototypes, rows, out)
    return out[:, : prototypes.n]


@dataclass
class KeptSlab:
    """Neighbouring columns of a growing basis in a run's rows."""

    entries: FloatArray  # (rows, SLAB_COLUMNS)
    count: int = 0  # columns that are filled

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.entries.nbytes

    @property
    def filled(self) -> bool:
        """True if all columns are."""
        return self.count == SLAB_COLUMNS


class Slab:
    """Columns first:last of a basis with `inputs` (k, d), for the pieces of one run; `kept`, if any, holds them."""

    def __init__(
        self, evaluator: TileEvaluator, inputs: FloatArray, first: int, last: int, kept: KeptSlab | None
    ) -> None:
        self._evaluator, self._kept = evaluator, kept
        self.first, self.last = first, last
        self._known = 0 if kept is None else min(kept.count, last - first)
        new = inputs[first + self._known : last]
        self._new = evaluator.prepare(new) if len(new) else None

    def columns(self, rows: Features, where: slice) -> FloatArray:
        """K(X_b, Z) of the slab for a piece, `where` of the run: (b, last - first), neighbouring in a row."""
        if self._new is None:
            assert self._kept is not None
            return self._kept.entries[where, : self.last - self.first]
        new = columns_between(self._evaluator, self._new, rows, "slab")
        if self._kept is None:
            return new
        self._kept.entries[where, self._known : self.last - self.first] = new
        return self._kept.entries[where, : self.last - self.first]

    def done(self) -> None:
        """Count the columns as filled, once all pieces of the run have been worked on."""
        if self._kept is not None:
            self._kept.count = max(self._kept.count, self.last - self.first)


@contextmanager
def slabs(
    evaluator: TileEvaluator, inputs: FloatArray, kept: tuple[str, Keeping] | None, run: int, rows: int
) -> Iterator[list[Slab]]:
    """Slabs of a basis with `inputs` (k, d) for a run of so many rows, of which a worker keeps what there is room for.

    `kept` is the name of the choice that grows the basis, and the terms; nothing is kept without. Columns in a slab
    count only once the context has ended without an error.
    """

    def room() -> KeptSlab:
        return KeptSlab(fresh_array(rows * SLAB_COLUMNS, np.float64).reshape(rows, SLAB_COLUMNS))

    with ExitStack() as stack:
        result = []
        for number, first in enumerate(range(0, len(inputs), SLAB_COLUMNS)):
            tiles = None
            if kept is not None:
                request = TileRequest(kept[0], (run, number), kept[1], room)
                tiles = stack.enter_context(worker_tiles().lent(request))
            result.append(Slab(evaluator, inputs, first, min(first + SLAB_COLUMNS, len(inputs)), tiles))
        yield result
        for slab in result:
            slab.done()


def slab_bytes(n: int, m: int) -> int:
    """Bytes of all slabs of a basis of m samples."""
    return 8 * n * -(-m // SLAB_COLUMNS) * SLAB_COLUMNS
