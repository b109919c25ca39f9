"""Decisions at samples that are left out, of the exact LS-SVM of a few thousand samples, in closed form.

With C = [[Kbar, 1], [1', 0]] and M the leading n x n part of its inverse, alpha = M y, and the decision at a fold F of
samples by all others is y_F - M_FF^-1 alpha_F: of one sample, y_i - alpha_i / M_ii (Cawley, *Leave-one-out
cross-validation based model selection criteria for weighted LS-SVMs*, 2006). With A = Kbar^-1 and S = 1'A1,
M = A - (A1)(A1)'/S.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import NumericalError
from dkgp.models.tuning.dense_inverse import invert


def left_out_decisions(
    matrix: FloatArray,
    signs: FloatArray,
    *,
    fit_intercept: bool = True,
    folds: Sequence[IntArray] | None = None,
) -> FloatArray:
    """Decisions (n, t) at each sample by those outside of its fold; by default each sample is left out by itself.

    `matrix` is Kbar in Fortran order, and overwritten; `signs` (n, t) are labels, -1 and 1; `folds` are indices,
    together each sample once. `NumericalError`: Kbar is not numerically positive definite, or without a fold nothing is
    left to tell the intercept by.
    """
    n, t = signs.shape
    inverse = invert(matrix, np.asfortranarray(np.column_stack([signs, np.ones(n)])))
    if inverse is None:
        raise NumericalError(
            "the kernel matrix of a subset is not positive definite in float64, so that no sample of it can be left "
            "out. Raise the noise variance"
        )
    solved = inverse[0]
    alpha, ones = np.array(solved[:, :t]), solved[:, t] if fit_intercept else np.zeros(n)
    total = float(ones.sum()) if fit_intercept else 1.0
    if fit_intercept:
        alpha -= np.outer(ones, solved[:, :t].sum(axis=0) / total)
    decisions = np.empty_like(signs)
    if folds is None:
        diagonal = np.diagonal(matrix) - ones**2 / total
        if not (diagonal > 0.0).all():
            raise NumericalError("a sample that is left out leaves nothing to tell the intercept by; take more samples")
        decisions[:] = signs - alpha / diagonal[:, None]
        return decisions
    for fold in folds:
        # The lower triangle alone is meaningful.
        block = np.array([[matrix[max(i, j), min(i, j)] for j in fold] for i in fold])
        block -= np.outer(ones[fold], ones[fold]) / total
        try:
            decisions[fold] = signs[fold] - np.linalg.solve(block, alpha[fold])
        except np.linalg.LinAlgError as error:
            raise NumericalError("a fold leaves nothing to tell the intercept by; take more folds") from error
    return decisions
