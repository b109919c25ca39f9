"""A generated field with a trend, gaps and a long range, and samples of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Of the unit square's side, the partial sill and the slope along the first coordinate.
RANGE, NUGGET, SLOPE = 0.1, 0.1, 2.0
_WAVES = 500
_GAPS = ((0.3, 0.3, 0.08), (0.7, 0.6, 0.12), (0.2, 0.8, 0.05))
# Rows whose waves are summed at once.
_ROWS = 20_000


@dataclass(frozen=True, eq=False)
class Problem:
    """Samples (n, 2) with values, and points (m, 2) with the true field, trend included.

    A tenth of the points lies in a gap.
    """

    places: FloatArray
    values: FloatArray
    points: FloatArray
    truth: FloatArray


def problem(n: int, n_points: int, seed: int = 0) -> Problem:
    """Draw a field of the exponential covariance, by random waves, and measure it outside of three round gaps."""
    rng = np.random.default_rng(seed)
    waves = rng.normal(size=(_WAVES, 2)) / np.sqrt(rng.chisquare(1, (_WAVES, 1))) / RANGE
    phases = rng.uniform(0.0, 2.0 * np.pi, _WAVES)

    def field(places: FloatArray) -> FloatArray:
        parts = [
            np.cos(places[row : row + _ROWS] @ waves.T + phases).sum(axis=1) for row in range(0, len(places), _ROWS)
        ]
        return np.asarray(SLOPE * places[:, 0] + np.sqrt(2.0 / _WAVES) * np.concatenate(parts))

    places = rng.random((2 * n, 2))
    places = places[~in_gap(places)][:n]
    points = rng.random((n_points, 2))
    x, y, radius = _GAPS[1]
    hidden = n_points // 10
    angle, distance = rng.uniform(0.0, 2.0 * np.pi, hidden), radius * np.sqrt(rng.random(hidden))
    points[:hidden] = np.column_stack([x + distance * np.cos(angle), y + distance * np.sin(angle)])
    values = field(places) + np.sqrt(NUGGET) * rng.normal(size=n)
    return Problem(places, values, points, field(points))


def in_gap(places: FloatArray) -> Any:
    """True for places in a gap: (n,)."""
    return np.any([np.hypot(places[:, 0] - x, places[:, 1] - y) <= radius for x, y, radius in _GAPS], axis=0)
