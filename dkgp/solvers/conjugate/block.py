"""Block conjugate gradients: Kbar X = B for all right-hand sides together, one product an iteration.

The residuals R of all columns, preconditioned, span the next directions P, which are made conjugate to the last ones
and nearly orthonormal. One product Q = Kbar P serves every column, and each takes the step along P that is the best
for it: X += P A, R -= Q A with A = (P'Q)^-1 P'R. For one column these are conjugate gradients.

What holds the recursion together where arithmetic does not:

* Directions that others span are left out, as are those along which the matrix, as rounded, has no curvature.
* The last directions are taken out of the next ones by their products with Q, not by ratios of residuals: so the
  preconditioner may be rounded, or change, and the residual may be computed anew, without a loss of conjugacy.
* A step is exact for the residual at hand, whatever directions it is taken along. P and Q belong to no column: columns
  may leave, or stay where they are, between any two iterations.

References
----------
D. P. O'Leary, The block conjugate gradient algorithm and related methods (1980).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkgp.cluster.threads import in_parallel
from dkgp.errors import NumericalError
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers.base import SolverState, nothing
from dkgp.solvers.stopping import Progress

# Directions that the others span to this share of their length are left out; of float32 ones little more is there.
DEPENDENT, DEPENDENT_SINGLE = 1e-7, 1e-5
# Shorter ones of float32 are zero: what they would be scaled by is beyond it.
SHORTEST_SINGLE = 1e-30
# Tall arrays are worked through a piece of their rows at a time, so that nothing as tall is made on the way; threads
# share the pieces of a tall result, and so many columns of a small one.
PIECE_ROWS, PIECE_COLUMNS = 4096, 256


def row_pieces(n: int) -> Iterator[slice]:
    """Rows 0 to n, a piece at a time."""
    return (slice(start, start + PIECE_ROWS) for start in range(0, n, PIECE_ROWS))


def add_product(target: NDArray[Any], tall: NDArray[Any], small: FloatArray, threads: int = 1) -> None:
    """Add A B to the target (n, t), in place and in its type, for A (n, k) and B (k, t)."""
    right, pieces = small.astype(target.dtype, copy=False), list(row_pieces(len(tall)))

    def add(index: int) -> None:
        rows = pieces[index]
        target[rows] += tall[rows].astype(target.dtype, copy=False) @ right

    in_parallel(add, len(pieces), threads)


@dataclass
class BlockDirections:
    """The directions of the last iteration.

    - `vectors` (n, k): P, nearly orthonormal; empty before the first iteration. Any will do, so float32 may round them.
    - `images` (n, k): Kbar P. Where both are float32, so is what is done with them, sums of pieces apart.
    - `threads`: of this process, to share the work; results do not depend on their number.
    """

    vectors: NDArray[Any] = field(default_factory=nothing)
    images: NDArray[Any] = field(default_factory=nothing)
    threads: int = 1
    _curvature: _Curvature | None = field(default=None, init=False, repr=False)

    @classmethod
    def of(cls, arrays: Mapping[str, FloatArray]) -> BlockDirections:
        """Those of a checkpoint; none where it is of a version that kept others, and the search starts anew."""
        return cls(arrays["directions"], arrays["images"]) if "images" in arrays else cls()

    def advance(
        self, preconditioned: NDArray[Any], residual: NDArray[Any], product: Callable[[NDArray[Any]], NDArray[Any]]
    ) -> FloatArray:
        """Find the next directions and the steps along them; the caller moves, by `vectors` and `images` times these.

        - `preconditioned` (n, c): M^-1 R, with any preconditioner M, of all columns or some; overwritten.
        - `residual` (n, t): R = B - Kbar X; not looked at before the product, which may compute it anew, in place.
        - `product`: Kbar V for V (n, k), any k up to c: (n, k).

        The steps A are (k, t). With k = 0 there is nothing to gain: no residual is left, or the matrix has no curvature
        along any direction.
        """
        self.conjugate(preconditioned)
        # As large as the images to come, for which there shall be room.
        self.images, self._curvature = np.zeros((0, 0), self.images.dtype), None
        self.vectors = _independent(preconditioned, self.vectors.dtype, self.threads)
        if self.vectors.size:
            images = product(self.vectors)
            curvature = _Curvature(self._cross(self.vectors, images))
            if curvature.rank:
                self.images, self._curvature = images, curvature
                return curvature.solve(self._cross(self.vectors, residual))
        self.vectors = np.zeros((0, 0), self.vectors.dtype)
        return np.zeros((0, residual.shape[1]))

    def conjugate(self, vectors: NDArray[Any]) -> None:
        """Take the last directions out of vectors (n, c), in place, so that they are conjugate to them."""
        if self.images.size:  # of a checkpoint, perhaps, which has no curvature: it comes to the same bits
            last = self._curvature or _Curvature(self._cross(self.vectors, self.images))
            add_product(vectors, self.vectors, -last.solve(self._cross(self.images, vectors)), self.threads)

    def _cross(self, left: NDArray[Any], right: NDArray[Any]) -> FloatArray:
        return _cross(left, right, np.result_type(left, right), self.threads)


@dataclass
class BlockState(SolverState):
    """A solve between two iterations, of a solver whose rounds are these."""

    directions: BlockDirections = field(default_factory=BlockDirections)

    def arrays(self) -> dict[str, FloatArray]:
        """Arrays of a checkpoint."""
        searched = {"directions": self.directions.vectors, "images": self.directions.images}
        return {**super().arrays(), **searched}

    def restore(self, arrays: Mapping[str, FloatArray], metadata: Mapping[str, Any]) -> None:
        """Take over a checkpoint's arrays and scalars."""
        super().restore(arrays, metadata)
        self.directions = BlockDirections.of(arrays)


def iterate(
    operator: KernelOperator,
    state: BlockState,
    preconditioned: FloatArray,
    moving: Callable[[Progress], bool] | None = None,
    double: bool = False,
) -> dict[str, float]:
    """One iteration in place, given M^-1 r of the state's residual r = -g; seconds by phase.

    With `double` its product is one of float64, whatever the state's rounds are, so that an exact gradient stays exact;
    like one that verifies, it counts as no column pass.
    With `moving` its product is one of float64 with [alpha, P], entries evaluated once: the gradient is computed anew,
    and the step along P is exact for it, so that the gradient after it is exact, too. It is taken if `moving` says so
    of where the solve stands before it.

    - `preconditioned` (n, p): overwritten.

    Raises `NumericalError`: the matrix has no curvature along the true gradient, in float64.
    """
    started, seconds, multiplied, onward = time.perf_counter(), 0.0, False, True
    directions, residual, p = state.directions, -state.gradient, state.gradient.shape[1]

    def product(vectors: NDArray[Any]) -> FloatArray:
        nonlocal seconds, multiplied, onward
        before, multiplied = time.perf_counter(), True
        if moving is None:
            images = operator.matmat(vectors, "double" if double else state.precision)
        else:
            both = operator.matmat(np.hstack([state.alpha, vectors]))
            state.take_gradient(operator, both[:, :p] - state.rhs)
            onward = moving(state.verified or state.measured(operator))
            np.negative(state.gradient, out=residual)
            images = np.ascontiguousarray(both[:, p:])
        seconds = time.perf_counter() - before
        return images

    # What came of the true gradient alone, in float64, would come of it again.
    last_resort = state.precision == "double" and state.exact and not directions.vectors.size
    step = directions.advance(preconditioned, residual, product)
    state.iteration += 1
    if moving is None and not double:
        state.columns += operator.n
    if not len(step):
        if last_resort and multiplied:
            raise NumericalError(
                f"after {state.iteration} rounds the kernel matrix, in float64, has no curvature along the gradient: "
                "it is not positive definite, or not finite. Raise the noise variance, or choose another kernel"
            )
        state.stuck = last_resort  # no direction is left: one that is not finite, or too short to be told from zero
        # Tiles in float32 need not form a positive definite matrix; those in float64 may do. What steps along such
        # tiles have come to, the recursion does not know: it may be worse than the start.
        if not state.exact:
            state.renew_gradient(operator)
        state.precision = "double"
    elif onward:
        add_product(state.alpha, directions.vectors, step)
        add_product(state.gradient, directions.images, step)
        if moving is None and not (double and state.exact):
            state.note_step(np.einsum("kt,kt->t", step, step))
        else:
            state.stepped = np.zeros_like(state.alpha)
            add_product(state.stepped, np.abs(directions.vectors), np.abs(step))
    return {
        "check" if double or moving is not None else "product": seconds,
        "update": time.perf_counter() - started - seconds,
    }


class _Curvature:
    """P'Q, factored."""

    def __init__(self, matrix: FloatArray) -> None:
        symmetric = (matrix + matrix.T) / 2.0
        self._lower: FloatArray | None = None
        self._root = np.zeros((len(symmetric), 0))
        if not np.isfinite(symmetric).all():
            return
        lower, trouble = scipy.linalg.lapack.dpotrf(symmetric, lower=1)
        if not trouble:
            self._lower = lower
            return
        values, vectors = np.linalg.eigh(symmetric)
        kept = values > len(values) * np.finfo(np.float64).eps * max(values[-1], 0.0)
        self._root = vectors[:, kept] / np.sqrt(values[kept])

    @property
    def rank(self) -> int:
        """Of how many directions' span there is any."""
        return self._root.shape[1] if self._lower is None else len(self._lower)

    def solve(self, right: FloatArray) -> FloatArray:
        """(P'Q)^-1 B, in the space along which there is curvature."""
        if self._lower is not None:
            return np.asarray(scipy.linalg.lapack.dpotrs(self._lower, right, lower=1)[0])
        return np.asarray(self._root @ (self._root.T @ right))


def _cross(left: NDArray[Any], right: NDArray[Any], dtype: np.dtype[Any], threads: int) -> FloatArray:
    """A'B: pieces in the type given, their sum in float64."""
    total = np.zeros((left.shape[1], right.shape[1]))

    def add(index: int) -> None:
        columns = slice(index * PIECE_COLUMNS, (index + 1) * PIECE_COLUMNS)
        for rows in row_pieces(len(left)):
            piece = right[rows, columns].astype(dtype, copy=False)
            total[:, columns] += left[rows].T.astype(dtype, copy=False) @ piece

    in_parallel(add, -(-right.shape[1] // PIECE_COLUMNS), threads)
    return total


def _independent(z: NDArray[Any], dtype: np.dtype[Any], threads: int) -> NDArray[Any]:
    """Directions that span what z (n, t) does, nearly orthonormal: (n, at most t)."""
    gram = _cross(z, z, np.dtype(np.float64), threads)
    if not np.isfinite(gram).all():
        return np.zeros((len(z), 0), dtype)
    lengths = gram.diagonal()
    scale = 1.0 / np.sqrt(np.maximum(lengths, np.finfo(np.float64).tiny))
    if z.dtype == np.float32:
        scale[lengths < SHORTEST_SINGLE**2] = 0.0
    scaled = scale[:, None] * gram * scale
    values, vectors = (scaled[0], np.ones((1, 1))) if len(scaled) == 1 else np.linalg.eigh(scaled)
    dependent = DEPENDENT_SINGLE if z.dtype == np.float32 else DEPENDENT
    kept = values > dependent**2 * values[-1]
    mixing = scale[:, None] * vectors[:, kept] / np.sqrt(values[kept])
    if z.dtype == np.float32:
        mixing = mixing.astype(np.float32)
    directions = np.empty((len(z), mixing.shape[1]), dtype)
    pieces = list(row_pieces(len(z)))

    def mix(index: int) -> None:
        directions[pieces[index]] = z[pieces[index]] @ mixing

    in_parallel(mix, len(pieces), threads)
    return directions
