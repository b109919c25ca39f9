"""Error propagation through a triangular factor: bounds on || |L^-1| |L| || and || |L^-1| d ||.

A triangular solve L f = c is exact for a matrix L + dL, |dL| <= gamma_R |L| (Higham 2002, theorem 8.5). The error of f
is therefore |L^-1| |L| |f| gamma_R. An entrywise error e d of c becomes |L^-1| d e. Both bounds are evaluated for the
given L, since bounds that hold for every L are larger by orders of magnitude.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from dkgp.models.rounding import EVALUATION, UNIT
from dkgp.operators.base import FloatArray
from dkgp.operators.low_rank.pivots import pad_columns

COLUMNS_AT_A_TIME = 512
ITERATIONS = 8
# Largest 3 gamma_R ||A||; beyond it the computed inverse is too far from the exact one.
LARGEST_SHARE = 0.1


@dataclass(frozen=True)
class Whitening:
    """Growth of errors from c to f = L^-1 c."""

    solving: float  # ||f_computed - f|| <= solving ||f_computed||, the solve's own roundings
    entries: float  # || |L^-1| d || for the given d: errors e d_i of c cause an error of f of at most e times this

    @classmethod
    def of(cls, lower: NDArray[Any], scale: FloatArray) -> Whitening | None:
        """Evaluate both bounds for L (R, R) and d = `scale` (R,).

        The result is None if L is float32, or too ill-conditioned for bounds from its computed inverse.

        Notes
        -----
        The largest eigenvalue of a matrix M without negative entries is at most max_i (M x)_i / x_i, for any positive x
        (Collatz and Wielandt). Here M = A'A with A = |X| |L|, X the computed inverse. The error of X is 3 gamma_R |X|
        |L| |L^-1| (Higham 2002, section 14.2). The bounds from X therefore grow by a factor of 1 / (1 - 3 gamma_R
        ||A||).
        """
        rank = len(lower)
        if lower.dtype != np.float64:
            return None
        computed, trouble = scipy.linalg.lapack.dtrtri(lower, lower=1)
        if trouble or not np.isfinite(computed).all():
            return None
        inverse = np.abs(np.tril(computed))
        del computed
        x, largest = np.ones(rank), np.inf
        for _ in range(ITERATIONS):
            y = _times(lower, inverse.T @ (inverse @ _times(lower, x)), transposed=True)
            largest = min(largest, float(np.max(y / x)))
            x = np.maximum(y / y.max(), 1e-100)
        norm = EVALUATION * np.sqrt(largest)
        gamma = (rank + 1) * UNIT
        off = 3.0 * gamma * norm
        if not off <= LARGEST_SHARE:
            return None
        grown = EVALUATION / (1.0 - off)
        return cls(float(gamma * norm * grown), float(np.linalg.norm(inverse @ scale) * grown))

    def square(
        self, lower: FloatArray, c: FloatArray, scale: FloatArray, unit_scale: float, error: FloatArray
    ) -> FloatArray:
        """Return an upper bound on |L^-1 c|^2: (t,).

        Parameters
        ----------
        lower : (R, R) float64
            L.
        c : (R, t) float64
            Vectors with errors of at most `error` times d.
        scale, unit_scale : (R,) float64, and a number
            Factors of d = `scale` `unit_scale`.

        Notes
        -----
        With f = L^-1 c as computed, rho = c - L f and w = L^-T f as computed, |L^-1 c|^2 is |f|^2 + 2 w'rho + 2 (dL'w)'
        L^-1 rho + |L^-1 rho|^2. The norm of L^-1 thus enters only through a product of two roundings. |rho| <= gamma
        |L||f| + error d, and |dL'w| <= gamma S with S = sum |w_j| |L_j| (Higham 2002, theorem 8.5).
        """
        rank, count = c.shape
        c = pad_columns(c)
        error = np.pad(np.broadcast_to(error, count), (0, c.shape[1] - count))
        f = scipy.linalg.solve_triangular(lower, c, lower=True, check_finite=False)
        w = np.abs(scipy.linalg.solve_triangular(lower, f, lower=True, trans=1, check_finite=False))
        length = np.linalg.norm(f, axis=0)
        size = (rank + 2) * UNIT * (np.linalg.norm(lower, axis=1) @ w)
        through = self.solving * length + self.entries * error  # |L^-1 rho|
        first = size * length + unit_scale * (scale @ w) * error  # |w|'|rho|
        off = 2.0 * first + 2.0 * size * through + through**2 + (rank + 4) * UNIT * length**2
        return np.asarray(length**2 + EVALUATION * off)[:count]


def _times(lower: FloatArray, vector: FloatArray, *, transposed: bool = False) -> FloatArray:
    """Return |L| x or |L|' x without a second matrix of the size of L."""
    result = np.zeros(len(vector))
    for start in range(0, len(vector), COLUMNS_AT_A_TIME):
        columns = slice(start, start + COLUMNS_AT_A_TIME)
        part = np.abs(lower[:, columns])
        if transposed:
            result[columns] = part.T @ vector
        else:
            result += part @ vector[columns]
    return result
