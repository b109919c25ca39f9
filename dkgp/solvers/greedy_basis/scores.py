"""Scores by which the next basis sample is taken; methods of the papers differ in nothing else.

With c_i = b_i - A_iS beta, the gradient's negative on the pool, A = K_mn D K_nm + K_mm, b = K_mn D y:

- `refit`: c_i^2 / (A_ii - |L^-1 A_Si|^2), twice the fall of the risk when all are refitted: sparse greedy GPs,
  orthogonal least squares, post-backfitting;
- `single`: c_i^2 / A_ii, twice its fall with the others held: matching pursuit with pre-backfitting;
- `gradient`: c_i^2: orthogonal matching pursuit, sparse conjugate directions;
- `residual`: (y_i - k_iS beta)^2: the basic kernel matching pursuit.

Of several targets they are summed.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from dkgp.operators.base import FloatArray

Score = Literal["refit", "single", "gradient", "residual"]
SCORES: tuple[str, ...] = get_args(Score)


def needs_basis_products(kind: Score) -> bool:
    """True if candidates' products with the basis, A_SC, enter: 2 n k multiply-adds for each."""
    return kind == "refit"


def score(
    kind: Score, gradient: FloatArray, residual: FloatArray, diagonal: FloatArray, schur: FloatArray | None
) -> FloatArray:
    """Scores of q candidates: (q,); -1 of one that the basis is known to leave nothing of.

    - `gradient`, `residual` (q, p): c, and y - K_CS beta.
    - `diagonal` (q,): A_ii.
    - `schur` (q,): A_ii - |L^-1 A_Si|^2, zero where nothing is left; for `refit`.
    """
    if kind == "residual":
        return np.asarray(np.sum(residual**2, axis=1))
    squares = np.asarray(np.sum(gradient**2, axis=1))
    if kind == "gradient":
        return squares
    below = diagonal if kind == "single" else schur
    assert below is not None
    return np.where(below > 0.0, squares / np.where(below > 0.0, below, 1.0), -1.0)
