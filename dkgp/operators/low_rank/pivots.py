"""Randomly pivoted Cholesky: landmarks drawn in proportion to the diagonal of the factor's residual."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkgp.cluster.threads import in_parallel
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Features, TileEvaluator
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.blas import blas

# Pivots are drawn from so many samples each, and from so many in any case.
SAMPLES_PER_LANDMARK = 1.5
LEAST_SUBSET = 4000
PIVOTS_A_STEP = 128
# Samples that a thread works on at a time.
PIECE_SAMPLES = 1024
# Pivots whose own residual has sunk to this share of their k(x, x) would add rounding errors and little else.
LEAST_PIVOT = 1e-10
LEAST_PIVOT_SINGLE = 1e-5
# A kernel that so many landmarks leave rough is one for a preconditioner, for which float32 does, in half the time. Of
# fewer it would spare nothing, and a factor that could be ten times as good would end at its least pivot (Friedman1 at
# a million: with 519 of 778 landmarks, going on so from half of them).
SINGLE_FROM_RANK = 1024
LEAST_JITTER = 1e-9
# Of an entry, in units of eps, for rows that are not far out.
ENTRY_ERROR = 64.0
# Where k(x, x) varies, it counts as this share of the largest at least: no division by zero.
LEAST_COUNTED = 1e-20
# Where no k(x, x) is above this, the kernel is zero: its shares would underflow.
LEAST_PRIOR = 1e-250


def jitter(rank: int, largest_diagonal: float, entry_error: float = ENTRY_ERROR) -> float:
    """The jitter of K_II's diagonal: a billionth of it, or twice the most that rounding may have taken off it.

    It makes L L' at least the exact K_II, so that the factor's Q is smaller than the exact one and Q <= K stays true.
    Scaled by the diagonal D, entries of K_II are off by `entry_error` eps, and L L' by (R + 1) u / (1 - (R + 1) u)
    besides (Higham 2002, theorem 10.5); no matrix of R rows is longer than R times its largest entry.
    """
    eps = float(np.finfo(np.float64).eps)
    rounding = rank * (0.51 * (rank + 2) + entry_error) * eps
    return max(LEAST_JITTER, 2.0 * rounding) * largest_diagonal


def jittered(matrix: FloatArray, entry_error: float = ENTRY_ERROR) -> FloatArray:
    """K_II with `jitter` on its diagonal, in place: each landmark's in proportion to its own k(x, x).

    Rounding errors in K_II go with sqrt(k(x, x) k(x', x')): so scaled, they are as small beside the jitter everywhere.
    """
    diagonal = matrix.diagonal()
    matrix[np.diag_indices(len(matrix))] += jitter(len(matrix), 1.0, entry_error) * counted(diagonal)
    return matrix


def counted(diagonal: FloatArray, largest: float | None = None) -> FloatArray:
    """Values of k(x, x), raised to a tiny share of the largest, of these or of all, where they vanish beside it."""
    values: FloatArray = np.maximum(diagonal, LEAST_COUNTED * (diagonal.max() if largest is None else largest))
    return values


def regularised_factor(gram: FloatArray, noise_variance: float) -> FloatArray:
    """Cholesky factor of F'F + s2 I, from F'F as it was computed; `gram` (R, R) is overwritten.

    Where rounding errors in F'F's null space exceed s2 (little noise, a large kernel), the diagonal is raised by as
    large a share as it takes: a preconditioner, or an estimate, is then a little rougher. `NumericalError` where F'F is
    far from positive semidefinite, or not finite.
    """
    rank, diagonal, share = len(gram), gram.diagonal().copy(), 0.0
    while share < 1.0:
        gram[np.diag_indices(rank)] = diagonal + noise_variance + share * diagonal
        lower, trouble = scipy.linalg.lapack.dpotrf(gram, lower=1, clean=0, overwrite_a=1)
        if not trouble:
            for column in range(1, rank):
                lower[:column, column] = 0.0
            return np.asarray(lower)
        for column in range(rank):
            gram[column:, column] = gram[column, column:]  # restored from the other triangle
        share = max(10.0 * share, (rank + 10) * float(np.finfo(np.float64).eps))
    raise NumericalError(
        f"the partial Cholesky factor of rank {rank} has no positive definite product with itself: the kernel's values "
        f"(up to {diagonal.max():.3g} after summing) exceed what the noise variance {noise_variance:.3g} can tell from "
        "rounding. Raise the noise variance, or bring inputs that are far out closer"
    )


def samples_drawn_from(rank: int) -> int:
    """Samples that up to `rank` landmarks are chosen from, where there are as many."""
    return max(LEAST_SUBSET, int(SAMPLES_PER_LANDMARK * rank))


def stand_in(n: int, rank: int, rng: np.random.Generator) -> IndexArray:
    """Draw the samples, sorted, that stand for all n in the choice of up to `rank` landmarks.

    Measured on kin40k, n = 10,000, rank 2,000: drawing from 4,000, 8,000 or all samples gave the same gaps of variances
    after every pass; landmarks drawn uniformly, slightly wider ones.
    """
    return np.sort(rng.permutation(n)[: samples_drawn_from(rank)]).astype(np.intp)


class RandomlyPivotedCholesky:
    """A partial Cholesky factor of a kernel matrix that grows by blocks of random pivots.

    Pivots are drawn from m samples with prepared features and `prior` k(x_i, x_i) (m,), evaluated in float64;
    `residual` (m,) is the diagonal of K - Q. `InputError` where the kernel is zero at all, or not finite at some.

    References
    ----------
    Y. Chen, E. N. Epperly, J. A. Tropp, R. J. Webber, Randomly pivoted Cholesky (2023), algorithm 2 (blocks).
    """

    def __init__(
        self,
        evaluator: TileEvaluator,
        features: Features,
        prior: FloatArray,
        largest_rank: int,
        rng: np.random.Generator,
    ) -> None:
        self._evaluator, self._features, self._rng = evaluator, features, rng
        self._largest_rank = largest_rank
        self._largest_prior = float(prior.max())
        if not LEAST_PRIOR < self._largest_prior < np.inf:
            raise InputError(
                f"k(x, x) comes to {self._largest_prior:.3g} at most at {len(prior):,} samples, which is "
                f"{'zero' if self._largest_prior < 1.0 else 'not finite'} for a factor's purposes. Scale the inputs, "
                "or choose another kernel"
            )
        # Residuals are compared with each sample's own k(x, x): errors go with it. Ones where that is a constant.
        self._relative = np.sqrt(counted(prior) / self._largest_prior)
        self.residual = prior.copy()
        self._rows: NDArray[Any] = np.zeros((largest_rank, len(prior)))
        self._pivots: list[int] = []
        self._least = LEAST_PIVOT * self._largest_prior
        self._ended = False

    @property
    def rank(self) -> int:
        """Pivots so far."""
        return len(self._pivots)

    @property
    def complete(self) -> bool:
        """True once the largest rank, or the kernel's numerical rank, has been reached."""
        return self._ended or self.rank >= self._largest_rank or not self._largest_residual > self._least

    @property
    def _largest_residual(self) -> float:
        """The largest share of any sample's k(x, x) in the residual."""
        return float((self.residual / self._relative**2).max())

    @property
    def pivots(self) -> IndexArray:
        """Samples chosen, in order."""
        return np.asarray(self._pivots, dtype=np.intp)

    @property
    def rows(self) -> NDArray[Any]:
        """The factor so far: (rank, m), with Q = rows' rows."""
        return self._rows[: self.rank]

    def extend(self) -> None:
        """Draw up to 128 further pivots; fewer are kept where some are nearly dependent on others."""
        rank, rows = self.rank, self._rows
        step = min(PIVOTS_A_STEP, self._largest_rank - rank)
        residual = self.residual
        if self._relative.min() < 1.0:
            # Rounding errors of a large k(x, x) may exceed a small one.
            residual = np.where(residual > self._least * self._relative**2, residual, 0.0)
        drawn = np.unique(self._rng.choice(len(residual), step, p=residual / residual.sum()))
        pivots, weights = self._features.take(drawn), np.ascontiguousarray(rows[:rank, drawn])
        columns = np.empty((len(residual), len(drawn)))
        pieces = [slice(start, start + PIECE_SAMPLES) for start in range(0, len(residual), PIECE_SAMPLES)]

        def evaluate(index: int) -> None:
            piece = pieces[index]
            kernel = self._evaluator.tile(self._features.slice(piece.start, min(piece.stop, len(residual))), pivots)
            columns[piece] = (kernel - rows[:rank, piece].T @ weights) / self._relative[drawn]

        in_parallel(evaluate, len(pieces))
        block = columns[drawn] / self._relative[drawn, None]
        lower, order, count, _ = scipy.linalg.lapack.dpstrf(
            np.asarray(block + block.T, dtype=np.float64) / 2.0, lower=1, tol=self._least
        )
        if count == 0:
            self._ended = True
            return
        order = order[:count] - 1
        triangle = np.asfortranarray(np.tril(lower[:count, :count]))
        explained = np.empty(len(residual))

        def whiten(index: int) -> None:
            piece = pieces[index]
            new = np.asfortranarray(columns[piece][:, order].T)
            blas("trsm", b"L", b"L", b"N", b"N", count, new.shape[1], 1.0, triangle, count, new, count)
            rows[rank : rank + count, piece] = new
            new = new.astype(rows.dtype, copy=False)
            explained[piece] = np.einsum("ri,ri->i", new, new)

        in_parallel(whiten, len(pieces))
        self.residual = np.maximum(self.residual - explained, 0.0)
        self.residual[drawn[order]] = 0.0
        self._pivots.extend(int(index) for index in drawn[order])

    def continue_in_single_if_rough(self) -> None:
        """Go on in float32, at half the time and memory, where much is left of the diagonal."""
        if self._largest_residual > LEAST_PIVOT_SINGLE * self._largest_prior:
            self._rows, self._least = self._rows.astype(np.float32), LEAST_PIVOT_SINGLE * self._largest_prior
