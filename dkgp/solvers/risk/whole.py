"""The exact matrix of Newton's systems, factored anew for every step, where it fits into memory.

Penalties far below what a low-rank factor leaves of K make the step's system B = lambda I + R'K R one that such a
factor does not precondition. With roots R = S (I - u u') by sample, S = diag(s) and u'u = 1 for softmax, S alone
elsewhere, and A_c = lambda I + S_c K S_c for column c,

    B^-1 r = U U'r / lambda + A^-1 q - A^-1 U (sum_c U_c A_c^-1 U_c)^-1 U'A^-1 q,    q = r - U U'r,

A all A_c in a block diagonal, U all U_c = diag(u_c) stacked: I - U U' projects, and B is Q A Q + lambda (I - Q). C + 1
factors of n rows are what a step takes of C classes (as Rasmussen and Williams 2006, algorithm 3.3), and nothing is
multiplied by K / lambda, whose digits would be lost.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from dkgp.errors import NumericalError
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.low_rank.pivots import regularised_factor
from dkgp.solvers.losses import CurvatureRoot
from dkgp.solvers.prices import ROUND_SECONDS, Prices

# What the factors of a step may take; as many samples of one column: 8,192.
MOST_BYTES = 512 * 1024**2
# Rows of K that are evaluated at a time.
PIECE_ROWS = 512
# Steps that are reckoned with before a first one is taken.
USUAL_STEPS = 12


def whole_bytes(n: int, p: int, coupled: bool) -> int:
    """Bytes of a step's factors: one a column, and of coupled columns their sum and an inverse besides."""
    return 8 * n * n * (p + 2 if coupled else p)


def whole_products(n: int, d: int, p: int, coupled: bool) -> float:
    """As many products with K as the factors of `USUAL_STEPS` steps take the time of, at nominal prices."""
    prices = Prices.nominal(d)
    product = n * n * (0.5 * prices.double_entries + 2.0 * p * prices.double_operations) + ROUND_SECONDS
    # A factor, and twice as much for an inverse.
    cubes = 3 * p + 1 if coupled else p
    return USUAL_STEPS * cubes * n**3 / 3.0 * prices.double_operations / product


class WholeCurvature:
    """B^-1 for the curvature that `refresh` was told last."""

    def __init__(self, operator: KernelOperator, regularisation: float) -> None:
        self._operator, self._regularisation = operator, regularisation
        self._root: CurvatureRoot | None = None
        self._lower: list[FloatArray] = []
        self._shared: FloatArray | None = None

    @classmethod
    def fits(cls, operator: KernelOperator, p: int, coupled: bool) -> bool:
        """True of an operator that has all entries at hand, and as many samples as fit."""
        exact = isinstance(operator, BlockedKernelOperator) and not operator.approximate
        return exact and whole_bytes(operator.n, p, coupled) <= MOST_BYTES

    def refresh(self, root: CurvatureRoot, columns: int) -> None:
        """Take the curvature's root, of so many columns; `NumericalError` where no factor is finite."""
        self._root, self._lower, self._shared = root, [], None
        unit, shared = root.unit, None
        for column in range(columns):
            lower = regularised_factor(self._scaled(root.spread[:, column]), self._regularisation)
            self._lower.append(lower)
            if unit is None:
                continue
            inverse, trouble = scipy.linalg.lapack.dpotri(lower, lower=1)
            if trouble:
                raise NumericalError("the curvature of a class has no inverse in float64; raise the penalty")
            inverse *= unit[:, column]
            inverse *= unit[:, column, None]
            if shared is None:
                shared = inverse
            else:
                shared += inverse
            del inverse
        if shared is not None:
            shared += np.tril(shared, -1).T
            self._shared = regularised_factor(shared, 0.0)

    def _scaled(self, spread: FloatArray) -> FloatArray:
        """S K S of a column, both triangles: (n, n)."""
        n = self._operator.n
        features = self._operator.features(np.arange(n, dtype=np.intp), "double")
        matrix = np.empty((n, n), order="F")
        for start in range(0, n, PIECE_ROWS):
            stop = min(start + PIECE_ROWS, n)
            matrix[:, start:stop] = self._operator.double.tile(features, features.slice(start, stop))
            matrix[:, start:stop] *= spread[start:stop]
        matrix *= spread[:, None]
        return matrix

    def _separately(self, right: FloatArray) -> FloatArray:
        """A^-1 of (n, p)."""
        solved = [
            scipy.linalg.cho_solve((lower, True), right[:, column], check_finite=False)
            for column, lower in enumerate(self._lower)
        ]
        return np.column_stack(solved)

    def apply(self, residual: FloatArray) -> FloatArray:
        """B^-1 r for r (n, p)."""
        assert self._root is not None, "refreshed before it is applied"
        unit = self._root.unit
        if unit is None or self._shared is None:
            return self._separately(residual)
        along = unit * np.sum(unit * residual, axis=1, keepdims=True)
        solved = self._separately(residual - along)
        shared = scipy.linalg.cho_solve((self._shared, True), np.sum(unit * solved, axis=1), check_finite=False)
        solved -= self._separately(unit * shared[:, None])
        # What is left along U is the rounding of a difference.
        solved -= unit * np.sum(unit * solved, axis=1, keepdims=True)
        return np.asarray(solved + along / self._regularisation)
