"""The exact LS-SVM by other means: one dense solve of its bordered system, in float64 or in 50 digits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg

from dkgp.kernels import Kernel, SquaredExponential
from tests.models.exact_gp import decimals, entry, in_digits, mp, numbers, of_decimals, solved


def dense_decisions(
    X: np.ndarray, signs: np.ndarray, T: np.ndarray, kernel: Kernel, noise: float | np.ndarray, intercept: bool = True
) -> np.ndarray:
    """Decisions at T (r, d) by equation 22, an LU factor of [[Kbar, 1], [1', 0]] in float64: (r, t)."""
    n = len(X)
    system = np.zeros((n + 1, n + 1))
    system[:n, :n] = kernel(X, X) + np.diag(np.broadcast_to(noise, (n,)))
    system[:n, n] = system[n, :n] = 1.0
    right = np.vstack([signs, np.zeros((1, signs.shape[1]))])
    if not intercept:
        return kernel(T, X) @ np.linalg.solve(system[:n, :n], signs)
    solved = np.linalg.solve(system, right)
    return np.hstack([kernel(T, X), np.ones((len(T), 1))]) @ solved


def digits_decisions(
    X: np.ndarray, signs: np.ndarray, T: np.ndarray, kernel: Kernel, noise: float | np.ndarray, intercept: bool = True
) -> list[list[Any]]:
    """The same in 50 digits: r rows of t numbers."""
    n, rows, tests = len(X), numbers(X), numbers(T)
    each = np.broadcast_to(np.asarray(noise, dtype=np.float64), (n,))
    size = n + int(intercept)
    system, right = np.full((size, size), mp.one), np.full((size, signs.shape[1]), mp.zero)
    for i in range(n):
        for j in range(i + 1):
            system[i, j] = system[j, i] = entry(kernel, rows[i], rows[j])
        system[i, i] += mp.mpf(float(each[i]))
    system[n:, n:] = mp.zero
    right[:n] = numbers(signs)
    cross = [[*(entry(kernel, row, x) for row in rows), mp.one][:size] for x in tests]
    with in_digits():
        return list(of_decimals(decimals(cross) @ solved(decimals(system), decimals(right))))


def refined_decisions(
    X: np.ndarray, signs: np.ndarray, T: np.ndarray, kernel: SquaredExponential, noise: float | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Decisions of a few thousand samples, and their change in the last of a few refinements: (r, t) both.

    A Cholesky factor in float64, and residuals in the C library's long double, whose entries are too: where it
    converges, its digits are more than float64 has.
    """
    n, long = len(X), np.longdouble
    scaled, tests = (rows.astype(long) * np.sqrt(np.asarray(kernel.gamma, long)) for rows in (X, T))

    def entries(rows: np.ndarray) -> np.ndarray:
        square = np.zeros((len(rows), n), long)
        for feature in range(X.shape[1]):
            square += (rows[:, feature, None] - scaled[None, :, feature]) ** 2
        return np.asarray(long(kernel.variance) * np.exp(-square))

    matrix = entries(scaled)
    matrix[np.diag_indices(n)] += np.broadcast_to(np.asarray(noise, long), (n,))
    factor = scipy.linalg.cho_factor(matrix.astype(np.float64), lower=True)
    right = np.column_stack([signs, np.ones(n)]).astype(long)
    cross, solved, before = entries(tests), np.zeros_like(right), np.zeros((len(T), signs.shape[1]), long)
    for _ in range(8):
        solved += scipy.linalg.cho_solve(factor, (right - matrix @ solved).astype(np.float64))
        intercept = solved[:, :-1].sum(axis=0) / solved[:, -1].sum()
        decisions = cross @ (solved[:, :-1] - solved[:, -1:] * intercept) + intercept
        change, before = np.abs(decisions - before), decisions
    return decisions.astype(np.float64), change.astype(np.float64)


@dataclass(frozen=True)
class Approximation:
    """An approximate solution of Kbar E = [Y, 1], as `DecisionCertificate.of` takes it."""

    alpha: np.ndarray
    gradient: np.ndarray
    stepped: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    product_error: float = 0.0

    @property
    def product_errors(self) -> np.ndarray:
        """The same error in each entry; empty where products are exact."""
        return np.full(self.gradient.shape, self.product_error) if self.product_error else np.zeros((0, 0))
