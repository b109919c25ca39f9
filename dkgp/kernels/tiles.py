"""Kernel tiles behind one call: `K(A, B) @ W` and `K(A, B)` from prepared features, compiled, without the GIL.

`TileEvaluator` hides how a kernel is evaluated: which precision, differences or the expanded form, how large a tile.
Another array backend can stand in its place by offering the same four methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.errors import InputError
from dkgp.kernels import compiled
from dkgp.kernels.base import Kernel

__all__ = ["Features", "Precision", "TileEvaluator"]

Precision = Literal["single", "double"]

# From this many features on 2ab - a^2 - b^2 with the product by BLAS beats direct differences, by `dkgp bench tiles`.
EXPANDED_FROM_FEATURES = {"single": 10, "double": 8}
# The expanded form loses |x|^2 times the precision's epsilon. Standardised inputs have an expected |x|^2 of
# sum(scale^2); where that is larger (many short length scales), single precision keeps to differences.
EXPANDED_UP_TO_SQUARED_NORM = {"single": 64.0, "double": float("inf")}
_TILE_BYTES = 48 * 1024


@dataclass(frozen=True)
class Features:
    """Rows of a data set as the tile loops want them: scaled, feature-major, padded to whole vectors.

    Attributes
    ----------
    values : (d, n_padded) float32 or float64
        Scaled features; the padding repeats the last row.
    squared_norms : (n_padded,) same type
    n : int
        Number of real rows.
    """

    values: NDArray[Any]
    squared_norms: NDArray[Any]
    n: int

    @classmethod
    def of(cls, values: NDArray[Any], n: int) -> Features:
        """Complete scaled, padded `values` (d, n_padded) with their norms."""
        norms = np.empty(values.shape[1], values.dtype)
        compiled.squared_norms(values, norms)
        return cls(values, norms, n)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.values.nbytes + self.squared_norms.nbytes

    def take(self, indices: NDArray[np.intp]) -> Features:
        """Return the chosen rows, in the order given."""
        padded = _padded(len(indices))
        values = np.empty((self.values.shape[0], padded), self.values.dtype)
        norms = np.empty(padded, self.values.dtype)
        if len(indices):
            compiled.gather_columns(self.values, self.squared_norms, indices, values, norms)
        return Features(values, norms, len(indices))

    def slice(self, start: int, stop: int) -> Features:
        """Return rows start:stop; a view where `start` and `stop` fall on whole vectors, a copy elsewhere."""
        if start % compiled.LANES == 0 and (stop % compiled.LANES == 0 or stop == self.n):
            end = start + _padded(stop - start)
            return Features(self.values[:, start:end], self.squared_norms[start:end], stop - start)
        return self.take(np.arange(start, stop, dtype=np.intp))


class TileEvaluator:
    """Evaluates one kernel's tiles in one precision.

    Parameters
    ----------
    kernel : Kernel
    precision : {"single", "double"}
        Type of the tile entries. Results of `matmat` are float64 either way.
    expanded : bool, optional
        Force (or forbid) the expanded form of the squared distance; chosen by the number of features by default.

    Notes
    -----
    A row's result depends on that row, the columns and their order alone, not on the rows evaluated with it.
    """

    def __init__(self, kernel: Kernel, precision: Precision = "single", *, expanded: bool | None = None) -> None:
        if precision not in ("single", "double"):
            raise InputError(f'precision must be "single" or "double"; got {precision!r}')
        self.kernel = kernel
        self.precision: Precision = precision
        self.dtype: np.dtype[Any] = np.dtype(np.float32 if precision == "single" else np.float64)
        program = kernel.tile_program()
        self._program = program
        # A feature with zero weight contributes nothing: leave it out of the loops (one stays, so that tiles have a
        # shape).
        active = np.flatnonzero(program.feature_scale > 0.0)
        self._active = active if active.size else np.zeros(1, np.intp)
        d = self._active.size
        squared_norm = float(np.sum(program.feature_scale**2))
        worthwhile = d >= EXPANDED_FROM_FEATURES[precision] and squared_norm <= EXPANDED_UP_TO_SQUARED_NORM[precision]
        self._expanded = worthwhile if expanded is None else bool(expanded)
        rows = _TILE_BYTES // (self.dtype.itemsize * (compiled.TILE_COLUMNS + min(d, 24)))
        self._tile_rows = int(np.clip(rows // 64 * 64, 64, 512))

    @property
    def program(self) -> tuple[int, bool, int, Any]:
        """Profile, expanded form, rows of a tile, amplitude: what `compiled.tile_into` is told."""
        amplitude = self.dtype.type(self._program.amplitude)
        return self._program.profile, self._expanded, self._tile_rows, amplitude

    def prepare(self, X: ArrayLike) -> Features:
        """Scale `X` (n, d) in float64, round to the evaluator's precision, lay out for the loops."""
        rows = np.asarray(X, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.kernel.n_features:
            raise InputError(f"expected rows of {self.kernel.n_features} features; got an array of shape {rows.shape}")
        n = rows.shape[0]
        values = np.empty((self._active.size, _padded(n)), self.dtype)
        if n:
            scale = self._program.feature_scale
            for position, feature in enumerate(self._active):
                np.multiply(rows[:, feature], scale[feature], out=values[position, :n], casting="same_kind")
            values[:, n:] = values[:, n - 1 : n]
        return Features.of(values, n)

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
        if W.ndim != 2 or W.shape[0] != B.n:
            raise InputError(f"expected weights of shape ({B.n}, t) for {B.n} kernel columns; got {W.shape}")
        weights = np.ascontiguousarray(W * self._program.amplitude, dtype=self.dtype)
        out = np.empty((W.shape[1], A.values.shape[1]))
        compiled.tile_matmat(
            A.values, A.squared_norms, B.values, B.squared_norms, B.n, weights, out,
            self._program.profile, self._expanded, self._tile_rows,
        )  # fmt: skip
        return out[:, : A.n].T

    def pair(
        self, A: Features, B: Features, W_B: NDArray[np.float64], W_A: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """K(A, B) @ W_B and K(B, A) @ W_A from one evaluation of the entries: half the work of a symmetric product.

        Parameters
        ----------
        A, B : Features
            a rows and b rows.
        W_B, W_A : (b, t) and (a, t) float64

        Returns
        -------
        (a, t) and (b, t) float64
        """
        if W_B.ndim != 2 or W_A.ndim != 2 or W_B.shape[0] != B.n or W_A.shape != (A.n, W_B.shape[1]):
            raise InputError(f"expected weights ({B.n}, t) and ({A.n}, t); got {W_B.shape} and {W_A.shape}")
        targets, padded = W_B.shape[1], A.values.shape[1]
        amplitude = self._program.amplitude
        weights_b = np.ascontiguousarray(W_B * amplitude, dtype=self.dtype)
        weights_a = np.zeros((targets, padded), self.dtype)
        weights_a[:, : A.n] = W_A.T * amplitude
        out_a, out_b = np.empty((targets, padded)), np.empty((targets, B.n))
        compiled.tile_pair(
            A.values, A.squared_norms, B.values, B.squared_norms, B.n, weights_b, weights_a, out_a, out_b,
            self._program.profile, self._expanded, self._tile_rows,
        )  # fmt: skip
        return out_a[:, : A.n].T, out_b.T

    def tile(self, A: Features, B: Features) -> NDArray[Any]:
        """K(A, B): (a, b) in the evaluator's precision (a transposed view of column-major storage)."""
        out = np.empty((B.n, A.values.shape[1]), self.dtype)
        compiled.tile_into(
            A.values, A.squared_norms, B.values, B.squared_norms, B.n, out,
            self._program.profile, self._expanded, self._tile_rows, self.dtype.type(self._program.amplitude),
        )  # fmt: skip
        return out[:, : A.n].T


def _padded(n: int) -> int:
    return -(-n // compiled.LANES) * compiled.LANES
