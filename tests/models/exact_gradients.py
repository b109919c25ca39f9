"""Gradients of the exact Gaussian process in 50 decimal digits, by differences of steps of 1e-15."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tests.models.exact_gp import IN_DIGITS, ExactGP, Row, decimals, entry, mp, numbers, of_decimals

STEP = mp.mpf(10) ** -15


@dataclass(frozen=True, eq=False)
class ExactGradients:
    """Of `gp`, at its test samples, on the standardised scale."""

    gp: ExactGP

    @cached_property
    def _rows(self) -> list[Row]:
        return numbers(self.gp.X)

    @cached_property
    def _inverse(self) -> np.ndarray:
        """By Gauss and Jordan; the matrix is positive definite."""
        n = len(self._rows)
        with decimal.localcontext(IN_DIGITS):
            both = np.hstack([self.gp.matrix, np.where(np.eye(n) > 0.0, decimal.Decimal(1), decimal.Decimal(0))])
            for j in range(n):
                both[j] /= both[j, j]
                for i in range(n):
                    if i != j:
                        both[i] -= both[i, j] * both[j]
        return both[:, n:]

    @cached_property
    def _alpha(self) -> np.ndarray:
        with decimal.localcontext(IN_DIGITS):
            return np.asarray(self._inverse @ decimals(self.gp.targets))

    def _column(self, x: Row) -> np.ndarray:
        return decimals([entry(self.gp.kernel, x, row) for row in self._rows])

    def _derivatives(self, function: Callable[[Row], Any], x: Row) -> list[Any]:
        """One for each feature, by a central difference: off by some 1e-30 of the third derivative."""
        found = []
        for feature in range(len(x)):
            above, below = list(x), list(x)
            above[feature] += STEP
            below[feature] -= STEP
            found.append((function(above) - function(below)) / (2 * STEP))
        return found

    @property
    def means(self) -> list[list[Row]]:
        """d mean_t / d x_l at each test sample: (t, p, d)."""

        def mean(x: Row) -> Any:
            with decimal.localcontext(IN_DIGITS):
                return mp.matrix(of_decimals(self._column(x) @ self._alpha))

        found = [self._derivatives(mean, x) for x in numbers(self.gp.T)]
        return [[list(row) for row in zip(*of_features, strict=True)] for of_features in found]

    def deviation(self, x: Row, noise: float) -> Any:
        """sqrt(V + noise)."""
        column = self._column(x)
        with decimal.localcontext(IN_DIGITS):
            explained = mp.mpf(str(column @ self._inverse @ column))
        return mp.sqrt(entry(self.gp.kernel, x, x) - explained + mp.mpf(noise))

    def deviations(self, noise: float) -> list[Row]:
        """d sqrt(V + noise) / d x_l: (t, d)."""
        return [self._derivatives(lambda z: self.deviation(z, noise), x) for x in numbers(self.gp.T)]
