"""One leaf of the model: samples G behind their halo J, what the basis leaves of them, and how that moves.

With I = (J, G), h samples of J and g of G, f_i the rows of F, and L L' = C = (K - F F')_II + S,

    T = [-L22^-1 L21 L11^-1, L22^-1],      W = T R,      R = [F, Y]_I,

G's part of the log likelihood is a function of W'W and of log|L22|. Where the whole function moves by <H, d(W'W)> / 2
for a symmetric H, A = W H, and by -p d log|L22|, it moves with C and R by <-(X + X') / 2, dC> + <T'A, dR>,

    X = T'((A W' + p I) T / 2 + P),      P = A R_J' C_JJ^-1  (columns of J, zeros elsewhere),

since W'W = R'(C^-1 - C_JJ^-1) R and 2 log|L22| = log|C| - log|C_JJ|. C takes F with it: dC = dK - dF F' - F dF'; and
noise by sample stands on its diagonal. p is the number of targets, or whatever counts the determinant.
Arrays lie row by row, of which LAPACK sees the transposes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.kernels import Features, TileEvaluator
from dkgp.operators.base import FloatArray, Variances
from dkgp.operators.blas import blas, lapack


@dataclass(frozen=True)
class LeafFactor:
    """T and W of one leaf."""

    halo: int  # h
    lower: FloatArray  # L, below its diagonal and on it: (h + g, h + g)
    rows: FloatArray  # T: (g, h + g)
    images: FloatArray  # W: (g, m + p)

    @property
    def log_determinant(self) -> float:
        """2 log|L22|."""
        return 2.0 * float(np.log(self.lower.diagonal()[self.halo :]).sum())

    def solved(self, right: FloatArray) -> FloatArray:
        """C_JJ^-1 B for columns B (h, t)."""
        across = np.array(right.T, order="C")
        _solve_halo(self.lower, self.halo, across)
        return across.T


def unexplained(evaluator: TileEvaluator, features: Features, factor: FloatArray) -> FloatArray:
    """K - F F' of some samples, by their features and rows of F (c, m): (c, c); not finite where it overflows."""
    matrix = np.ascontiguousarray(evaluator.tile(features, features))
    if factor.shape[1]:
        with np.errstate(over="ignore", invalid="ignore"):
            matrix -= factor @ factor.T
    return matrix


def factored_rows(matrix: FloatArray, halo: int, noise: Variances, rows: FloatArray | None = None) -> FloatArray | None:
    """T of one leaf, (g, h + g), in memory of its own or in `rows`; None where C is not positive definite in float64.

    `matrix` is K - F F' of I, of which the diagonal and what is below count; L of C takes its place.
    """
    count = len(matrix)
    matrix[np.diag_indices(count)] += noise
    # What is not finite comes down to the diagonal, in which all squares of a row are summed.
    if lapack("potrf", b"U", count, matrix, count) or not np.isfinite(matrix.diagonal()).all():
        return None
    rows = np.empty((count - halo, count)) if rows is None else rows
    rows[:, :halo], rows[:, halo:] = 0.0, np.eye(count - halo)
    blas("trsm", b"L", b"U", b"N", b"N", count, count - halo, 1.0, matrix, count, rows, count)
    return rows


def factor_leaf(
    evaluator: TileEvaluator, features: Features, halo: int, noise: Variances, right: FloatArray, rank: int
) -> LeafFactor | None:
    """Factor one leaf; None where C is not positive definite in float64.

    `features` are of I = (J, G), of which `halo` are J; the noise is one number or (h + g,); `right` is R (h + g,
    m + p), whose first `rank` columns are F.
    """
    matrix = unexplained(evaluator, features, right[:, :rank])
    rows = factored_rows(matrix, halo, noise)
    return None if rows is None else LeafFactor(halo, matrix, rows, rows @ right)


@dataclass(frozen=True)
class LeafSlopes:
    """Slopes of the log likelihood by one leaf's entries."""

    entries: FloatArray  # by C, and so by K_II; its trace by the noise: (h + g, h + g)
    factor: FloatArray  # by F_I, all ways: (h + g, m)


@dataclass(frozen=True)
class Moved:
    """Slopes of the log likelihood by the sums over all leaves."""

    images: FloatArray  # H, by W'W: (m + p, m + p)
    determinants: float  # by -log|L22|


def noise_slopes(leaf: LeafFactor, right: FloatArray, moved: Moved) -> FloatArray:
    """Slopes by the noise of one leaf's samples: (h + g,)."""
    *_, inner = _inner(leaf, right, moved)
    return np.asarray(-np.einsum("ij,ij->j", leaf.rows, inner))


def slopes(leaf: LeafFactor, right: FloatArray, rank: int, moved: Moved) -> LeafSlopes:
    """Slopes of one leaf; `right` and `rank` as for `factor_leaf`."""
    halo, count, T, W = leaf.halo, leaf.lower.shape[0], leaf.rows, leaf.images
    A, across, half, inner = _inner(leaf, right, moved)
    X = T.T @ inner
    factor = np.empty((count, 0))
    if rank:
        F, V = right[:, :rank], W[:, :rank]
        # T'A_F + (X + X') F, with T F = V.
        factor = T.T @ (A[:, :rank] + 2.0 * (half @ V) + across @ F[:halo])
        factor[:halo] += across.T @ V
    return LeafSlopes(-0.5 * (X + X.T), factor)


def _inner(leaf: LeafFactor, right: FloatArray, moved: Moved) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """A, the columns of P, (A W' + p I) / 2 made symmetric, and what stands right of T' in X."""
    halo, T, W = leaf.halo, leaf.rows, leaf.images
    A = W @ moved.images
    across = np.ascontiguousarray(A @ right[:halo].T)  # P
    _solve_halo(leaf.lower, halo, across)
    half = 0.5 * (A @ W.T)
    half[np.diag_indices(len(T))] += 0.5 * moved.determinants
    half = 0.5 * (half + half.T)
    inner = half @ T
    inner[:, :halo] += across
    return A, across, half, inner


def _solve_halo(lower: FloatArray, halo: int, across: FloatArray) -> None:
    """Overwrite rows B' (t, h), C-contiguous, with B' C_JJ^-1."""
    if halo and len(across):
        shape = halo, len(across), 1.0, lower, len(lower), across, halo
        blas("trsm", b"L", b"U", b"T", b"N", *shape)
        blas("trsm", b"L", b"U", b"N", b"N", *shape)
