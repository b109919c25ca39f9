"""Columns of K(X, Z) in memory that is used again, and those of a growing basis, which workers keep.

Memory that is new has a price for every page, on virtual machines several times that of the entries written to it: a
thread's pieces go to memory of its own, time and again.

A basis that grows has its columns kept in slabs of `SLAB_COLUMNS` for each run of blocks, within a worker's budget of
tiles (`dkgp.operators.kept_tiles`). What is kept is read; what is not, because there was no room, or a worker died, is
evaluated. Slabs have the same layout and go through the same operations either way, so that bits do not depend on it.
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
from dkgp.kernels.tiles import loops
from dkgp.kernels.tiles.pages import fresh_array
from dkgp.operators.base import FloatArray
from dkgp.operators.keeping import Keeping
from dkgp.operators.kept_tiles import worker_tiles

__all__ = ["SLAB_COLUMNS", "KeptSlab", "Slab", "columns_between", "plain", "scratch", "slab_bytes", "slabs"]

SLAB_COLUMNS = 256

_threads = threading.local()


def scratch(name: str, rows: int, columns: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Memory of the thread's own, by name: (rows, columns), as it was left; good until it is asked for again."""
    held, key = _threads.__dict__, f"{name} {dtype}"
    if key not in held or len(held[key]) < rows * columns:
        held[key] = np.empty(rows * columns, dtype)
    numbers: NDArray[Any] = held[key]
    return numbers[: rows * columns].reshape(rows, columns)


def columns_between(evaluator: TileEvaluator, prototypes: Features, rows: Features, name: str) -> NDArray[Any]:
    """K(X_b, Z): (b, m), a row after the other in this thread's memory of that name, padded to whole vectors."""
    evaluator.count(prototypes.n * rows.n)
    out = scratch(name, rows.n, prototypes.values.shape[1], evaluator.dtype)
    loops.tile_into(
        *plain(prototypes), *plain(rows), rows.n, out, evaluator.program, evaluator.tile_rows,
        evaluator.dtype.type(evaluator.amplitude),
    )  # fmt: skip
    return out[:, : prototypes.n]


def plain(rows: Features) -> tuple[NDArray[Any], NDArray[Any]]:
    """Values and norms in the one layout that the loops are compiled for."""
    return np.require(rows.values, None, ["C", "W"]), np.require(rows.squared_norms, None, ["C", "W"])


@dataclass
class KeptSlab:
    """Neighbouring columns of a growing basis in a run's rows.

    Attributes
    ----------
    entries : (rows, SLAB_COLUMNS) float64
    count : int
        Columns that have been left there.
    """

    entries: FloatArray
    count: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.entries.nbytes

    @property
    def filled(self) -> bool:
        """True if there is nothing to be left there any more."""
        return self.count == SLAB_COLUMNS


class Slab:
    """Columns first:last of a basis, at hand for the pieces of one run.

    Parameters
    ----------
    evaluator : TileEvaluator
    inputs : (k, d) float64
        Of the basis.
    first, last : int
    kept : KeptSlab, optional
        Where columns are left and read.
    """

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
        found = columns_between(self._evaluator, self._new, rows, "slab")
        if self._kept is None:
            return found
        self._kept.entries[where, self._known : self.last - self.first] = found
        return self._kept.entries[where, : self.last - self.first]

    def done(self) -> None:
        """Note that all pieces of the run have been gone through."""
        if self._kept is not None:
            self._kept.count = max(self._kept.count, self.last - self.first)


@contextmanager
def slabs(
    evaluator: TileEvaluator, inputs: FloatArray, kept: tuple[str, Keeping] | None, run: int, rows: int
) -> Iterator[list[Slab]]:
    """A basis' slabs for a run of so many rows, of which a worker keeps what there is room for.

    Parameters
    ----------
    inputs : (k, d) float64
        Of the basis, in the order in which it grew.
    kept : (str, Keeping), optional
        Name of the choice that grows it, and the terms; nothing is kept by default.
    run : int
        The run's number.

    Notes
    -----
    What has been left in a slab counts only once the context has ended well.
    """

    def room() -> KeptSlab:
        return KeptSlab(fresh_array(rows * SLAB_COLUMNS, np.float64).reshape(rows, SLAB_COLUMNS))

    with ExitStack() as held:
        found = []
        for number, first in enumerate(range(0, len(inputs), SLAB_COLUMNS)):
            tiles = None
            if kept is not None:
                tiles = held.enter_context(worker_tiles().lent(kept[0], (run, number), kept[1], room))
            found.append(Slab(evaluator, inputs, first, min(first + SLAB_COLUMNS, len(inputs)), tiles))
        yield found
        for slab in found:
            slab.done()


def slab_bytes(n: int, m: int) -> int:
    """Bytes of all slabs of a basis of m samples."""
    return 8 * n * -(-m // SLAB_COLUMNS) * SLAB_COLUMNS
