"""Gradients of the exact Gaussian process in 50 decimal digits, by differences of steps of 1e-15."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tests.models.exact_gp import ExactGP, Row, decimals, entry, in_digits, mp, numbers, of_decimals, solved

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
        n = len(self._rows)
        return solved(self.gp.matrix, decimals([[mp.mpf(i == j) for j in range(n)] for i in range(n)]))

    @cached_property
    def _alpha(self) -> np.ndarray:
        return solved(self.gp.matrix, decimals(self.gp.targets))

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
            with in_digits():
                return mp.matrix(of_decimals(self._column(x) @ self._alpha))

        found = [self._derivatives(mean, x) for x in numbers(self.gp.T)]
        return [[list(row) for row in zip(*of_features, strict=True)] for of_features in found]

    def deviation(self, x: Row, noise: float) -> Any:
        """sqrt(V + noise)."""
        column = self._column(x)
        with in_digits():
            explained = mp.mpf(str(column @ self._inverse @ column))
        return mp.sqrt(entry(self.gp.kernel, x, x) - explained + mp.mpf(noise))

    def deviations(self, noise: float) -> list[Row]:
        """d sqrt(V + noise) / d x_l: (t, d)."""
        return [self._derivatives(lambda z: self.deviation(z, noise), x) for x in numbers(self.gp.T)]
