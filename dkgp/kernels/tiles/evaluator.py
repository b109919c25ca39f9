"""Kernel tiles behind one call: `K(A, B) @ W` and `K(A, B)` from prepared features, compiled, without the GIL.

`TileEvaluator` hides the way a kernel is evaluated: the precision, differences or the expanded form, the size of a
tile. Another array backend can stand in its place by offering the same four methods. `EntryCount` counts evaluated
entries on any number of threads. `fresh_array` lies on pages of its own, whose memory goes back to the system with the
array.
"""

from __future__ import annotations

import math
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from dkgp.errors import InputError
from dkgp.kernels.base import Kernel
from dkgp.kernels.tiles import loops
from dkgp.kernels.tiles.blocks import TILE_COLUMNS
from dkgp.kernels.tiles.encoding import EncodedProgram, encoded
from dkgp.kernels.tiles.features import Features, padded_count, write_scaled
from dkgp.kernels.tiles.processor import require_fused_multiply_add
from dkgp.kernels.tiles.stages import stage_names


def fresh_array(entries: int, dtype: DTypeLike) -> NDArray:  # type: ignore[type-arg]
    """An array of so many numbers on untouched pages.

    An allocator's memory may have been used before, and may stay with it after use: its price could not be measured,
    and it might not be freed.
    """
    # Shared ones, the default, are a file's in memory: dearer, never huge.
    pages = mmap.mmap(-1, max(1, entries * np.dtype(dtype).itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype, entries)


class EntryCount:
    """A sum that threads may add to at once.

    Attributes
    ----------
    value : int
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value = 0

    def add(self, entries: int) -> None:
        """Count so many more."""
        with self._lock:
            self.value += int(entries)


_current: ContextVar[EntryCount | None] = ContextVar("dkgp_entry_count", default=None)


@contextmanager
def counting() -> Iterator[EntryCount]:
    """Count the entries evaluated while the context is open, as tasks do.

    By this thread, and by threads that run in a copy of its context; not by evaluators with a count of their own.
    """
    count = EntryCount()
    token = _current.set(count)
    try:
        yield count
    finally:
        _current.reset(token)


def count_entries(entries: int, count: EntryCount | None = None) -> None:
    """Count entries in `count`, else in the innermost open `counting`, if any."""
    count = count or _current.get()
    if count is not None:
        count.add(entries)


Precision = Literal["single", "double"]

_TILE_BYTES = 48 * 1024
# Rows that a product's padding to whole vectors would cost more than their columns' taking the vectors' place.
FEW_ROWS = 8
# A coordinate is rounded when the centre is taken off and when it is scaled: one epsilon, and a little for the second
# order and for evaluating the bound itself.
ROUNDED_TWICE = 1.01


@dataclass
class KeptTiles:
    """Entries of K between one block of rows and another, in the order in which `tile_pair` walks them."""

    entries: NDArray[Any]
    filled: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.entries.nbytes


class TileEvaluator:
    """Evaluates one kernel's tiles in one precision.

    Parameters
    ----------
    precision : {"single", "double"}
        Type of the tile entries. Results of `matmat` are float64 either way.
    expanded : bool, optional
        Force (or forbid) the expanded form of the squared distances; chosen for each group of inputs by their number
        and the profile by default. A profile that is steep at zero (Matern 1/2, a user's function) keeps to
        differences in any case: the expanded form would cost it half of all digits.
    entries : EntryCount, optional
        Where evaluated entries are counted; by default in the `counting` that is open, if any.
    centre : (d,) array_like, optional
        Subtracted from inputs where only differences matter, since inputs far from the origin lose digits. It must
        be equal for all evaluators whose features meet; none by default, for inputs that have mean zero already.

    Raises
    ------
    InputError
        An unknown precision, a kernel whose tile program is malformed, or a processor without fused multiply-adds.

    Notes
    -----
    A row's result depends on that row, the columns and their order alone, not on the rows evaluated with it. Evaluators
    with and without the expanded form can read each other's features.
    """

    def __init__(
        self,
        kernel: Kernel,
        precision: Precision = "single",
        *,
        expanded: bool | None = None,
        entries: EntryCount | None = None,
        centre: ArrayLike | None = None,
    ) -> None:
        if precision not in ("single", "double"):
            raise InputError(f'precision must be "single" or "double"; got {precision!r}')
        require_fused_multiply_add()
        self.kernel = kernel
        self.precision: Precision = precision
        self.dtype: np.dtype[Any] = np.dtype(np.float32 if precision == "single" else np.float64)
        self._expanded, self._entries = expanded, entries
        self._centre = None if centre is None else np.asarray(centre, dtype=np.float64)
        if self._centre is not None and self._centre.shape != (kernel.n_features,):
            raise InputError(f"expected a centre of {kernel.n_features} features; got shape {self._centre.shape}")
        self._encoded: EncodedProgram = encoded(kernel, self.dtype, expanded)
        self._inputs = self._encoded.inputs
        # Whose entries have the same bits either way round; of users' functions nobody knows.
        self._symmetric = all(isinstance(stage.name, str) for stage in self._encoded.stages)
        entry_bytes = self.dtype.itemsize * (TILE_COLUMNS * self._encoded.depth + min(max(self._inputs, 1), 24))
        self.tile_rows = min(max(_TILE_BYTES // entry_bytes // 64 * 64, 64), 512)

    def __reduce__(self) -> tuple[Any, ...]:
        # The table holds addresses of this process.
        return partial(TileEvaluator, expanded=self._expanded, centre=self._centre), (self.kernel, self.precision)

    @property
    def program(self) -> NDArray[np.int64]:
        """The kernel's program for the loops of `dkgp.kernels.tiles.loops`; holds in this process alone."""
        return self._encoded.table

    @property
    def stage_names(self) -> tuple[str, ...]:
        """The stages of dkgp that the kernel takes, users' functions apart."""
        return tuple(sorted({stage.name for stage in self._encoded.stages if stage.name in stage_names()}))

    @property
    def amplitude(self) -> float:
        """Factor on the loops' tiles."""
        return self._encoded.amplitude

    @property
    def inputs(self) -> int:
        """Rows of features that a sample takes: those that the kernel looks at, two for a periodic one."""
        return self._inputs

    @property
    def entry_error(self) -> float:
        """Bound on |computed - exact| of one entry, `row_errors` apart, in units of epsilon times the kernel's scale.

        The scale is the largest value that the kernel's terms, each taken by its absolute value, reach together: the
        amplitude of a stationary kernel, the sum of the amplitudes of a sum; of a linear or polynomial kernel the value
        at the largest |x||x'| that occurs. It counts the differences and squares, the profile, and the arithmetic
        between terms. Of a user's function it is assumed that it is good to sixteen roundings and changes by no more
        than its scale when the squared distance changes in proportion, or the distance by one.
        """
        return self._encoded.entry_error

    def row_errors(self, X: ArrayLike) -> NDArray[np.float64]:
        """Errors that rows add to those of their entries: (n,), in units of epsilon.

        With e of rows x and x', the computed k(x, x') is within epsilon times the scale times (e + e') of the exact one
        at the rows as they are; `entry_error` is part of it, half on either side. The rest is the rounding of scaled
        inputs, 2u a coordinate, times the kernel's slope in the distance, and the error of the expanded form,
        (3 d + 10) u (|a|^2 + |b|^2), times its slope in the squared distance. Errors of factors multiply;
        since exp(a + b) - 1 <= (exp(2a) - 1) / 2 + (exp(2b) - 1) / 2, they are apart all the same.
        """
        rows, centred = self._checked(X)
        eps = float(np.finfo(self.dtype).eps)
        errors = np.full(len(rows), 0.5 * self.entry_error)
        # Of rows so far out that squares overflow nothing is known.
        with np.errstate(over="ignore", invalid="ignore"):
            for sensitivity in self._encoded.sensitivities:
                group = sensitivity.group
                displaced, squared_norm = np.zeros(len(rows)), np.zeros(len(rows))
                for part in group.parts:
                    for number, (feature, scale) in enumerate(zip(part.features, part.scale, strict=True)):
                        column = centred[:, feature]
                        if part.periods is None:
                            squares = (scale * column) ** 2
                            displaced += squares
                            squared_norm += squares
                        else:
                            # Of the angle, two roundings of the turns; of its cosine and sine, a few each.
                            turns = np.abs(column / part.periods[number])
                            displaced += (scale * (2.0 * math.pi * turns + 10.0)) ** 2
                            squared_norm += scale * scale
                errors += ROUNDED_TWICE * sensitivity.slope * np.sqrt(displaced)
                errors += 0.5 * (3 * group.inputs + 10) * sensitivity.bend * squared_norm
        errors[np.isnan(errors)] = np.inf
        # exp(t) - 1 <= t / (1 - t / 2) below t = 2: a quotient has the same bits everywhere, NumPy's exponential not.
        share = np.minimum(eps * errors, 1.0)
        with np.errstate(divide="ignore"):
            bounds: NDArray[np.float64] = errors / (1.0 - share)
        return bounds

    def prepare(self, X: ArrayLike) -> Features:
        """Centre and scale `X` (n, d) in float64, round to the evaluator's precision, lay out for the loops."""
        rows, centred = self._checked(X)
        n, groups = rows.shape[0], self._encoded.groups
        values = np.empty((self._inputs, padded_count(n)), self.dtype)
        norms = np.zeros((sum(not group.product for group in groups), values.shape[1]), self.dtype)
        if n:
            place = norm = 0
            for group in groups:
                first = place
                for part in group.parts:
                    place = write_scaled(part, centred if group.centred else rows, values, place)
                values[first:place, n:] = values[first:place, n - 1 : n]
                if not group.product:
                    loops.squared_norms(values[first:place], norms[norm])
                    norm += 1
        return Features(values, norms, n)

    def _checked(self, X: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Rows (n, d) as they are, and off the centre."""
        rows = np.asarray(X, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.kernel.n_features:
            raise InputError(f"expected rows of {self.kernel.n_features} features; got an array of shape {rows.shape}")
        return rows, rows if self._centre is None else rows - self._centre

    def matmat(self, A: Features, B: Features, W: NDArray[np.float64]) -> NDArray[np.float64]:
        """K(A, B) @ W without ever holding more of K than a tile.

        Parameters
        ----------
        A, B : Features
            a rows and b rows, from `prepare` of this evaluator.
        W : (b, t) float64

        Returns
        -------
        (a, t) float64
            Tile sums run in the evaluator's precision, their total in float64.
        """
        self._require_prepared(A, B)
        if W.ndim != 2 or W.shape[0] != B.n:
            raise InputError(f"expected weights of shape ({B.n}, t) for {B.n} kernel columns; got {W.shape}")
        weights = np.ascontiguousarray(W * self.amplitude, dtype=self.dtype)
        self.count(A.n * B.n)
        if A.n <= FEW_ROWS and self._symmetric:
            few = np.empty((W.shape[1], A.n))
            loops.tile_matmat_few(*A.arrays, A.n, *B.arrays, B.n, weights, few, self.program)
            return few.T
        out = np.empty((W.shape[1], A.values.shape[1]))
        loops.tile_matmat(*A.arrays, *B.arrays, B.n, weights, out, self.program, self.tile_rows)
        return out[:, : A.n].T

    def pair(
        self,
        A: Features,
        B: Features,
        W_B: NDArray[np.float64],
        W_A: NDArray[np.float64],
        tiles: KeptTiles | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """K(A, B) @ W_B and K(B, A) @ W_A from one look at the entries: half the work of a symmetric product.

        Parameters
        ----------
        A, B : Features
            a rows and b rows.
        W_B, W_A : (b, t) and (a, t) float64
        tiles : KeptTiles, optional
            From `room` for these: entries are read there, where they have been left by an earlier call, and left there
            otherwise. The products' bits are the same.

        Returns
        -------
        (a, t) and (b, t) float64
        """
        self._require_prepared(A, B)
        if W_B.ndim != 2 or W_A.ndim != 2 or W_B.shape[0] != B.n or W_A.shape != (A.n, W_B.shape[1]):
            raise InputError(f"expected weights ({B.n}, t) and ({A.n}, t); got {W_B.shape} and {W_A.shape}")
        return self._both(A, B, W_B, W_A, False, tiles)

    def symmetric(self, A: Features, W: NDArray[np.float64], tiles: KeptTiles | None = None) -> NDArray[np.float64]:
        """K(A, A) @ W, (a, t) float64, from little more than half of the entries; `tiles` as for `pair`."""
        self._require_prepared(A)
        if W.ndim != 2 or W.shape[0] != A.n:
            raise InputError(f"expected weights of shape ({A.n}, t) for {A.n} kernel columns; got {W.shape}")
        left, right = self._both(A, A, W, W, True, tiles)
        return np.asarray(left + right)

    def room(self, A: Features, B: Features | None = None) -> KeptTiles:
        """Make room for the entries of a `pair` of rows, or of `symmetric` where there is no B."""
        columns = A.n if B is None else B.n
        entries = loops.pair_entries(A.values.shape[1], columns, self.tile_rows, B is None)
        return KeptTiles(fresh_array(entries, self.dtype))

    def entries_of(self, A: Features, B: Features | None = None) -> int:
        """Entries that a `pair` of rows looks at, or `symmetric` where there is no B."""
        return loops.pair_entries(A.n, A.n if B is None else B.n, self.tile_rows, B is None)

    def _both(
        self,
        A: Features,
        B: Features,
        W_B: NDArray[np.float64],
        W_A: NDArray[np.float64],
        diagonal: bool,
        tiles: KeptTiles | None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        targets, rows = W_B.shape[1], A.values.shape[1]
        form, entries = loops.EVALUATED, np.empty(0, self.dtype)
        if tiles is not None:
            form, entries = loops.READ if tiles.filled else loops.KEPT, tiles.entries
            expected = loops.pair_entries(rows, B.n, self.tile_rows, diagonal)
            if entries.dtype != self.dtype or entries.shape != (expected,):
                raise InputError(
                    f"expected {expected} kept entries in {self.dtype}; got {entries.shape} in {entries.dtype}"
                )
        if form != loops.READ:
            self.count(self.entries_of(A, None if diagonal else B))
        along = np.zeros((targets, rows), self.dtype)
        with np.errstate(over="ignore"):  # infinite, and so is the sum, in float32 perhaps alone
            across = np.ascontiguousarray((W_B * self.amplitude).T, dtype=self.dtype)
            along[:, : A.n] = W_A.T * self.amplitude
        out_a, out_b = np.empty((targets, rows)), np.empty((targets, B.n))
        loops.tile_pair(
            *A.arrays, *B.arrays, B.n, across, along, out_a, out_b, self.program, self.tile_rows, diagonal, entries,
            form,
        )  # fmt: skip
        if tiles is not None:
            tiles.filled = True
        return out_a[:, : A.n].T, out_b.T

    def tile(self, A: Features, B: Features) -> NDArray[Any]:
        """K(A, B): (a, b) in the evaluator's precision (a transposed view of column-major storage)."""
        out = np.empty((B.n, A.values.shape[1]), self.dtype)
        self.fill(A, B, out)
        return out[:, : A.n].T

    def fill(self, A: Features, B: Features, out: NDArray[Any]) -> None:
        """Write K(B, A) to `out` (b, padded a), contiguous, in the evaluator's precision."""
        self._require_prepared(A, B)
        self.count(A.n * B.n)
        amplitude = self.dtype.type(self.amplitude)
        loops.tile_into(*A.arrays, *B.arrays, B.n, out, self.program, self.tile_rows, amplitude)

    def count(self, entries: int) -> None:
        """Count evaluated entries; for compiled code that runs the `program` in loops of its own."""
        count_entries(entries, self._entries)

    def _require_prepared(self, *features: Features) -> None:
        """Refuse features of another kernel's evaluator: compiled code would read past their arrays."""
        for rows in features:
            if rows.values.dtype != self.dtype or rows.values.shape[0] != self._inputs:
                raise InputError(
                    f"expected features of {self._inputs} inputs in {self.dtype}, from `prepare` of this kernel's "
                    f"evaluator; got {rows.values.shape[0]} in {rows.values.dtype}"
                )
