"""Gradients of the exact Gaussian process in 50 decimal digits, by differences of steps of 1e-15."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tests.models.exact_gp import ExactGP, Row, entry, mp, numbers

STEP = mp.mpf(10) ** -15


@dataclass(frozen=True, eq=False)
class ExactGradients:
    """Of `gp`, at its test samples, on the standardised scale."""

    gp: ExactGP

    @cached_property
    def _rows(self) -> list[Row]:
        return numbers(self.gp.X)

    @cached_property
    def _inverse(self) -> Any:
        n = len(self._rows)
        K = mp.matrix(n, n)
        noise = np.broadcast_to(self.gp.noise_variance, n)
        for i in range(n):
            for j in range(n):
                K[i, j] = entry(self.gp.kernel, self._rows[i], self._rows[j])
            K[i, i] += mp.mpf(float(noise[i]))
        return K**-1

    @cached_property
    def _alpha(self) -> Any:
        return self._inverse * mp.matrix(self.gp.targets)

    def _column(self, x: Row) -> Any:
        return mp.matrix([entry(self.gp.kernel, x, row) for row in self._rows])

    def _derivative(self, function: Any, x: Row, feature: int) -> Any:
        """By a central difference: off by some 1e-30 of the third derivative."""
        above, below = list(x), list(x)
        above[feature] += STEP
        below[feature] -= STEP
        return (function(above) - function(below)) / (2 * STEP)

    @property
    def means(self) -> list[list[Row]]:
        """d mean_t / d x_l at each test sample: (t, p, d)."""
        return [
            [
                [
                    self._derivative(lambda z, t=t: (self._column(z).T * self._alpha[:, t])[0], x, feature)
                    for feature in range(len(x))
                ]
                for t in range(self._alpha.cols)
            ]
            for x in numbers(self.gp.T)
        ]

    def deviation(self, x: Row, noise: float) -> Any:
        """sqrt(V + noise)."""
        column = self._column(x)
        return mp.sqrt(entry(self.gp.kernel, x, x) - (column.T * self._inverse * column)[0] + mp.mpf(noise))

    def deviations(self, noise: float) -> list[Row]:
        """d sqrt(V + noise) / d x_l: (t, d)."""
        return [
            [self._derivative(lambda z: self.deviation(z, noise), x, feature) for feature in range(len(x))]
            for x in numbers(self.gp.T)
        ]
