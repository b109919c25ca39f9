"""Factors of F'WF + lambda I: exact where the Grams are of this point, and a preconditioner of its neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dkgp.errors import NumericalError
from dkgp.operators.base import FloatArray
from dkgp.operators.low_rank.landmark_rows import whiten
from dkgp.solvers.basis_risk.tasks import Curvatures, block_pairs


@dataclass(frozen=True)
class Factor:
    """Cholesky factors of a Hessian.

    - `kind`: one for all columns, one for each, or one of all columns together.
    - `lowers`: (q, q), q = m and one more with an intercept; of blocks (m t, m t).
    - `coupled`: of a shared one: columns answer to their differences alone, and their mean to the penalty.
    """

    kind: Curvatures
    lowers: tuple[FloatArray, ...]
    coupled: bool
    regularisation: float

    def solve(self, right: FloatArray) -> FloatArray:
        """H^-1 G for G (q, t): row by row in memory, as a checkpoint's arrays are, for sums depend on it."""
        return np.ascontiguousarray(self._solve(right))

    def _solve(self, right: FloatArray) -> FloatArray:
        if self.kind == "columns":
            return np.column_stack([_solved(own, g[:, None]) for own, g in zip(self.lowers, right.T, strict=True)])
        if self.kind == "blocks":
            return _solved(self.lowers[0], right.T.reshape(-1, 1)).reshape(right.T.shape).T
        if not self.coupled:
            return _solved(self.lowers[0], right)
        mean = right.mean(axis=1, keepdims=True)
        return np.asarray(_solved(self.lowers[0], right - mean) + mean / self.regularisation)

    def arrays(self) -> dict[str, FloatArray]:
        """Arrays of a checkpoint."""
        return {"lowers": np.stack([lower.T for lower in self.lowers])}

    @classmethod
    def restored(cls, kind: Curvatures, lowers: FloatArray, coupled: bool, regularisation: float) -> Factor:
        """Rebuild from a checkpoint's arrays."""
        return cls(kind, tuple(np.ascontiguousarray(lower).T for lower in lowers), coupled, regularisation)


def factor_of(
    kind: Curvatures,
    grams: FloatArray,
    borders: FloatArray,
    corners: FloatArray,
    regularisation: float,
    *,
    coupled: bool,
    intercept: bool,
) -> Factor:
    """Factor Grams as tasks have summed them; they are overwritten.

    Raises `NumericalError`: one is not positive definite in float64.
    """
    if kind == "blocks":
        return Factor(kind, (_factored(_joined(grams), regularisation),), coupled, regularisation)
    lowers = []
    for gram, border, corner in zip(grams, borders, corners, strict=True):
        matrix = gram.T
        if intercept:
            m = len(border)
            matrix = np.zeros((m + 1, m + 1), order="F")
            matrix[:m, :m] = gram.T
            matrix[m, :m] = border
            # Where no sample is curved, nothing tells of the intercept, and it stays.
            matrix[m, m] = corner if corner > 0.0 else 1.0
        lowers.append(_factored(matrix, regularisation, len(gram)))
    return Factor(kind, tuple(lowers), coupled, regularisation)


def _joined(grams: FloatArray) -> FloatArray:
    """The Hessian of all columns from the Grams of their pairs: its lower triangle, in Fortran order."""
    m = grams.shape[1]
    t = round((np.sqrt(8 * len(grams) + 1) - 1) / 2)
    matrix = np.zeros((t * m, t * m), order="F")
    for gram, (c, other) in zip(grams, block_pairs(t), strict=True):
        block = np.tril(gram.T)
        if c != other:
            block += np.tril(block, -1).T
        matrix[c * m : (c + 1) * m, other * m : (other + 1) * m] = block
    return matrix


def _factored(matrix: FloatArray, regularisation: float, penalised: int | None = None) -> FloatArray:
    """The factor of a matrix, of which the lower triangle holds, with the penalty on its first rows."""
    where = np.arange(len(matrix) if penalised is None else penalised)
    largest = float(matrix.diagonal().max(initial=0.0))
    matrix[where, where] += regularisation
    lower, trouble = scipy.linalg.lapack.dpotrf(matrix, lower=1, clean=1, overwrite_a=1)
    if trouble or not np.isfinite(lower).all():
        raise NumericalError(
            f"the Hessian of {len(matrix):,} coefficients is not positive definite in float64: its entries go up to "
            f"{largest:.3g}, whose rounding exceeds the `regularisation` {regularisation:.3g}. Raise it, or take fewer "
            "basis samples"
        )
    return np.asarray(lower)


def _solved(lower: FloatArray, right: FloatArray) -> FloatArray:
    return np.asarray(whiten(lower, whiten(lower, right, transposed=False), transposed=True))
