"""Randomly pivoted Cholesky: landmarks drawn in proportion to what the factor leaves of the kernel's diagonal."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkgp.kernels import Features, TileEvaluator
from dkgp.operators.base import FloatArray, IndexArray

__all__ = ["RandomlyPivotedCholesky", "jitter"]

PIVOTS_A_STEP = 128
# Pivots whose own residual has sunk to this share of k(x, x) would add rounding errors and little else.
LEAST_PIVOT = 1e-10
LEAST_PIVOT_SINGLE = 1e-5
LEAST_JITTER = 1e-9


def jitter(rank: int, largest_diagonal: float) -> float:
    """Return what is added to K_II's diagonal: a billionth, or ten times its factorisation's rounding error.

    It makes the factor's Q smaller than the exact one, never larger, so Q <= K stays true; and it bounds ||L^-1||,
    by which rounding errors grow on their way through the factor.
    """
    rounding = 10.0 * (rank + 10) * float(np.finfo(np.float64).eps)
    return max(LEAST_JITTER, rounding) * largest_diagonal


class RandomlyPivotedCholesky:
    """A partial Cholesky factor of a kernel matrix that grows by blocks of random pivots.

    Parameters
    ----------
    evaluator : TileEvaluator
        Of the kernel, in float64.
    features : Features
        The samples to draw from, prepared; (m, d).
    prior : (m,) float64
        k(x_i, x_i).
    largest_rank : int
        Pivots at most.
    rng : numpy.random.Generator

    Attributes
    ----------
    residual : (m,) float64
        Diagonal of what is left, K - Q.

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
        self.residual = prior.copy()
        self._rows: NDArray[Any] = np.zeros((largest_rank, len(prior)))
        self._chosen: list[int] = []
        self._least = LEAST_PIVOT * self._largest_prior
        self._ended = False

    @property
    def rank(self) -> int:
        """Pivots so far."""
        return len(self._chosen)

    @property
    def complete(self) -> bool:
        """Whether the largest rank, or the kernel's numerical rank, has been reached."""
        return self._ended or self.rank >= self._largest_rank or not self.residual.max() > self._least

    @property
    def pivots(self) -> IndexArray:
        """Samples chosen, in order."""
        return np.asarray(self._chosen, dtype=np.intp)

    @property
    def rows(self) -> NDArray[Any]:
        """The factor so far: (rank, m), with Q = rows' rows."""
        return self._rows[: self.rank]

    def extend(self) -> None:
        """Draw up to 128 further pivots; fewer are kept where some are nearly dependent on others."""
        rank, rows = self.rank, self._rows
        step = min(PIVOTS_A_STEP, self._largest_rank - rank)
        drawn = np.unique(self._rng.choice(len(self.residual), step, p=self.residual / self.residual.sum()))
        columns = self._evaluator.tile(self._features, self._features.take(drawn)) - rows[:rank].T @ rows[:rank, drawn]
        block = columns[drawn]
        lower, order, kept, _ = scipy.linalg.lapack.dpstrf(
            np.asarray(block + block.T, dtype=np.float64) / 2.0, lower=1, tol=self._least
        )
        if kept == 0:
            self._ended = True
            return
        order = order[:kept] - 1
        new = scipy.linalg.solve_triangular(
            np.tril(lower[:kept, :kept]), columns[:, order].T, lower=True, check_finite=False
        ).astype(rows.dtype)
        rows[rank : rank + kept] = new
        self.residual = np.maximum(self.residual - np.einsum("ri,ri->i", new, new), 0.0)
        self.residual[drawn[order]] = 0.0
        self._chosen.extend(int(index) for index in drawn[order])

    def continue_in_single_if_rough(self) -> None:
        """Go on in float32, at half the time and memory, where much is left of the diagonal."""
        if self.residual.max() > LEAST_PIVOT_SINGLE * self._largest_prior:
            self._rows, self._least = self._rows.astype(np.float32), LEAST_PIVOT_SINGLE * self._largest_prior
