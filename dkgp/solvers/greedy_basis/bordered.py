"""A Cholesky factor that grows by rows, and the solution of the system it is of.

A_SS = L L', L eta = b_S, A_SS beta = b_S. With the gradient c_i = b_i - A_iS beta of a new variable, its eta is
c_i / sqrt(d_i), d_i = A_ii - |L^-1 A_Si|^2 its Schur complement: the least value of -b'beta + beta'A beta / 2 falls by
exactly c_i^2 / (2 d_i).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dkgp.operators.base import FloatArray
from dkgp.solvers.base import Saved
from dkgp.solvers.cholesky.triangular import solve_lower, solve_lower_transposed

# A variable of which others leave less than this share of A_ii is one of their span, as far as float64 can tell: a sum
# over the samples is off by up to some 1,200 u, a tenth of it. The factor makes more of that where others' weights are
# large, so that near the limit its solutions are good for scores, and for no more.
LEAST_PIVOT = 1e-12


class BorderedFactor(Saved):
    """L and eta; and A_SS itself, above L's diagonal and in a vector."""

    saved = ("lower", "diagonal", "half")
    counted = ()

    def __init__(self, capacity: int, targets: int) -> None:
        self._lower = np.zeros((capacity, capacity))
        self._diagonal = np.zeros(capacity)
        self._half = np.zeros((targets, capacity))
        self.size = 0

    @property
    def system(self) -> FloatArray:
        """A_SS as it was given: (k, k), Fortran order."""
        system = np.array(self._lower[: self.size, : self.size], order="F")
        for i in range(self.size):
            system[i, i] = self._diagonal[i]
            system[i + 1 :, i] = system[i, i + 1 :]
        return system

    @property
    def lower(self) -> FloatArray:
        """L, where its lower triangle is read; A's entries lie above: (k, k)."""
        return self._lower[: self.size, : self.size]

    @property
    def diagonal(self) -> FloatArray:
        """The diagonal of A_SS: (k,)."""
        return self._diagonal[: self.size]

    @property
    def half(self) -> FloatArray:
        """Eta by target: (p, k)."""
        return self._half[:, : self.size]

    def solution(self) -> FloatArray:
        """Beta: (k, p)."""
        solution = self._half[:, : self.size].copy()
        if self.size:
            solve_lower_transposed(self._lower, self.size, solution)
        return solution.T

    def rows(self, between: FloatArray) -> FloatArray:
        """L^-1 A_SC for A_SC (k, q), one candidate a row: (q, k)."""
        rows = np.array(between.T, order="C")
        if self.size:
            solve_lower(self._lower, self.size, rows)
        return rows

    def schur(self, between: FloatArray, diagonal: FloatArray) -> FloatArray:
        """d of candidates with A_SC (k, q) and A_cc (q,): (q,); zero where others leave nothing of one."""
        rows = self.rows(between)
        schur = diagonal - np.einsum("qk,qk->q", rows, rows)
        return np.asarray(np.where(schur > LEAST_PIVOT * diagonal, schur, 0.0))

    def append(self, between: FloatArray, inner: FloatArray, gradient: FloatArray) -> list[int]:
        """Add variables C, one after the other, and return which: those that others leave something of.

        - `between` (k, c): A_SC.
        - `inner` (c, c): A_CC.
        - `gradient` (c, p): b_C - A_CS beta, before any of them.
        """
        old, rows = self.size, self.rows(between)
        corner, remaining = inner - rows @ rows.T, np.array(gradient)
        kept: list[int] = []
        for i in range(len(inner)):
            if not corner[i, i] > LEAST_PIVOT * inner[i, i]:
                continue
            pivot = np.sqrt(corner[i, i])
            column, eta = corner[:, i] / pivot, remaining[i] / pivot
            new = self.size
            self._lower[new, :old] = rows[i]
            # In the columns of those before it lies their share of it.
            self._lower[new, old:new] = corner[i, kept]
            self._lower[new, new] = pivot
            self._lower[:old, new] = between[:, i]
            self._lower[old:new, new] = inner[kept, i]
            self._diagonal[new] = inner[i, i]
            self._half[:, new] = eta
            kept.append(i)
            self.size += 1
            later = slice(i + 1, None)
            corner[later, later] -= np.outer(column[later], column[later])
            remaining[later] -= np.outer(column[later], eta)
            corner[later, i] = column[later]
        return kept

    def restore(self, arrays: Mapping[str, FloatArray], metadata: Mapping[str, Any]) -> None:
        """Take over a checkpoint."""
        self.size = len(arrays["lower"])
        self.lower[:], self.diagonal[:], self.half[:] = (arrays[name] for name in self.saved)
