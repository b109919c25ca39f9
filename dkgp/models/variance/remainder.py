"""Bounds on v'Ev for what a factor leaves of the kernel matrix, E = K - Q, from blocks of it on its diagonal.

E is positive semidefinite, so for any cut of the samples into groups b,

    v'Ev <= (sum_b sqrt(v_b' E_bb v_b))^2,

which with groups of one sample is (sum |v_i| sqrt(e_i))^2. Samples that are not neighbours have next to nothing of E in
common: then v_b' E_bb v_b is about sum e_i v_i^2, and the bound falls as 1 / m, m the samples of a group. Groups of 128
take n m numbers and n m multiply-adds a test sample, and let the factor do with two thirds of the landmarks.

With L f_i = k_i and L'w_i = f_i as computed, each column of a solve within gamma_R |L| (Higham 2002, theorem 8.5), and
W = sum v_i w_i, c = K_In v: v'Qv = c'(LL')^-1 c >= 2 W'c - |L'W|^2. Where exact, that is |sum v_i f_i|^2; as computed,
entry ij of it is off by gamma (S_i |f_j| + S_j |f_i|) + gamma^2 S_i S_j with S_i = sum_l |w_il| |L_l|, and by roundings
of k. All that is below a_i p_j + a_j p_i + a_i a_j, p_i no less than |f_i| and than sqrt(k_ii).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkgp.kernels import Features, TileEvaluator
from dkgp.models.rounding import EPS, EVALUATION, UNIT
from dkgp.operators.base import FloatArray

# Samples of a group; and where intervals are bound to be narrow for most, which larger blocks then decide.
GROUP, LARGE_GROUP = 128, 512
# What a block in float32 is off by, and its quadratic form in float64, in units of its norm times |v_b|^2.
STORED = 2.0**-22


def remainder_bytes(n: int, group: int) -> int:
    """Bytes that the blocks of n samples take."""
    return 4 * n * group + 24 * n


@dataclass(frozen=True)
class Interpolation:
    """Weights w = L^-T f of some samples, as far as roundings depend on them."""

    size: FloatArray  # (r,) float64: S, the sum of |w_l| |L_l| over the rows of L
    errors: FloatArray  # (r,) float64: the same sum with each landmark's row error

    @classmethod
    def of(cls, lower: NDArray[Any], f: NDArray[Any], landmark_errors: FloatArray) -> Interpolation:
        """Of samples whose columns of L^-1 K_In are f (R, r)."""
        w = np.abs(scipy.linalg.solve_triangular(lower, f, lower=True, trans=1, check_finite=False))
        lengths = np.linalg.norm(lower, axis=1)
        return cls(lengths @ w, (lengths * landmark_errors) @ w)


class Remainder:
    """Blocks of E on its diagonal, and the roundings they were made with.

    Parameters
    ----------
    n : int
        Samples.
    typical_error : float
        Row error that `scale` of `fill` is relative to.
    group : int
        Samples of a block at most.
    """

    def __init__(self, n: int, typical_error: float, group: int) -> None:
        self._typical_error, self._group = typical_error, group
        self._blocks = np.zeros((n, group), np.float32)  # over their norms
        self._norms, self._p, self._a = np.zeros(n), np.zeros(n), np.zeros(n)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._blocks.nbytes + self._norms.nbytes + self._p.nbytes + self._a.nbytes

    def fill(
        self,
        evaluator: TileEvaluator,
        rows: Features,
        where: slice,
        f: FloatArray,
        scale: FloatArray,
        weights: Interpolation,
    ) -> None:
        """Take in a run of samples.

        Parameters
        ----------
        rows : Features
            r of them, the samples `where`.
        f : (R, r) float64
            L^-1 K_Ir.
        scale : (r,) float64
            sqrt(k(x, x)) times their row error over the typical one, where that is more than one.
        """
        rank, start = len(f), where.start
        p = np.maximum(scale, np.linalg.norm(f, axis=0))
        entries = 2.0 * EPS * self._typical_error
        a = 3.0 * (rank + 2) * UNIT * weights.size + entries * weights.size + 2.0 * EPS * weights.errors
        a += ((rank + 8) * UNIT + entries) * p
        self._p[where], self._a[where] = EVALUATION * p, EVALUATION * a
        for group in _groups(rows.n, self._group):
            own = rows.slice(group.start, group.stop)
            block = evaluator.tile(own, own) - f[:, group].T @ f[:, group]
            norm = float(np.linalg.norm(block))
            first, count = start + group.start, group.stop - group.start
            if norm > 0.0:
                self._blocks[first : first + count, :count] = block / norm
            self._norms[first] = norm

    def spread(self, where: slice, v: FloatArray, single: FloatArray) -> FloatArray:
        """Sum of sqrt(v_b' E_bb v_b) over the groups of a run that was filled in as one: (t,), never too little.

        Parameters
        ----------
        single : (r,) float64
            sqrt(e_i), where it is known to be enough.
        """
        total = np.zeros(v.shape[1])
        for group in _groups(len(v), self._group):
            own, first, count = v[group], where.start + group.start, group.stop - group.start
            size = np.abs(own)
            block = self._blocks[first : first + count, :count].astype(np.float64)
            norm = self._norms[first]
            quadratic = norm * np.einsum("it,it->t", own, block @ own)
            rounding = self._a[first : first + count] @ size
            quadratic = np.maximum(quadratic, 0.0) + STORED * norm * np.einsum("it,it->t", own, own)
            quadratic += rounding * (2.0 * (self._p[first : first + count] @ size) + rounding)
            total += np.fmin(np.sqrt(EVALUATION * quadratic), single[group] @ size)
        return total


def _groups(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
