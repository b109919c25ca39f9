"""Probabilities above thresholds against dense truth, and order relations of indicators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special

from dkgp.errors import InputError
from dkgp.kriging import Kriging, Variogram
from dkgp.kriging.field import Kriged
from dkgp.kriging.indicators import IndicatorKriging, exceedance, exceedance_map, ordered

VARIOGRAM = Variogram("exponential", psill=1.0, range=2.0, nugget=(0.1, 0.05))


@pytest.fixture
def samples(rng: Any) -> tuple[Any, Any]:
    x, y = rng.uniform(0.0, 8.0, (2, 25))
    return (x, y), np.sin(x) + 0.2 * y + 0.1 * rng.standard_normal(25)


@pytest.mark.parametrize("of", ["signal", "field", "observation"])
def test_intervals_contain_the_probability_of_the_exact_process(of: str, samples: Any, rng: Any) -> None:
    (x, y), z = samples
    kriging = Kriging(VARIOGRAM, kind="simple", mean=0.5, of=of, tolerance=1e-3).fit((x, y), z)
    points, limits = rng.uniform(0.0, 8.0, (2, 200)), np.array([-2.0, 0.0, 0.7, 3.0])
    result = exceedance(kriging.kriged(tuple(points), variance=True), limits)
    at = np.column_stack([x, y])
    K = VARIOGRAM.covariance(np.linalg.norm(at[:, None] - at, axis=2)) + 0.15 * np.eye(25)
    k = VARIOGRAM.covariance(np.linalg.norm(at[:, None] - points.T, axis=2))
    mean = 0.5 + k.T @ np.linalg.solve(K, z - 0.5)
    variance = 1.0 - np.einsum("nr,nr->r", k, np.linalg.solve(K, k))
    variance += {"signal": 0.0, "field": 0.05, "observation": 0.15}[of]
    exact = scipy.special.ndtr((mean[:, None] - limits) / np.sqrt(variance)[:, None])
    assert (result.lower[:, 0] <= exact + 1e-14).all()
    assert (exact <= result.upper[:, 0] + 1e-14).all()
    assert (result.upper - result.lower).max() < 0.1
    assert ((result.lower <= result.probability) & (result.probability <= result.upper)).all()


def test_corners_against_a_dense_search() -> None:
    """The ends are those over all means and variances of the box."""
    mean, bound, low, high = np.array([-1.0, 0.1, 2.0]), np.array([0.3, 0.2, 0.0]), np.array([0.0, 0.5, 0.1]), 1.5
    parts: list[Any] = [part[:, None] for part in (mean, bound, 0.5 * (low + high), low, np.full(3, high))]
    result = exceedance(Kriged(*parts), [0.0])
    for row in range(3):
        means = np.linspace(mean[row] - bound[row], mean[row] + bound[row], 41)
        deviations = np.sqrt(np.linspace(max(low[row], 1e-12), high, 2001))
        values = scipy.special.ndtr(means[:, None] / deviations)
        assert result.lower[row, 0, 0] <= values.min() <= result.lower[row, 0, 0] + 1e-6
        assert result.upper[row, 0, 0] - 1e-6 <= values.max() <= result.upper[row, 0, 0]


def test_a_known_value_exceeds_or_not() -> None:
    zero, one = np.zeros((1, 1)), np.ones((1, 1))
    result = exceedance(Kriged(one, zero, zero, zero, zero), [0.9, 1.0, 1.1])
    assert result.probability[0, 0].tolist() == [1.0, 0.0, 0.0]
    assert result.lower[0, 0, 0] == pytest.approx(1.0, abs=1e-12)
    assert result.upper[0, 0, 2] == pytest.approx(0.0, abs=1e-300)
    with pytest.raises(InputError, match="probabilities need variances"):
        exceedance(Kriged(one, zero), [0.0])
    with pytest.raises(InputError, match="`thresholds` are finite numbers"):
        exceedance(Kriged(one, zero, zero, zero, zero), [np.nan])


def test_maps_of_probabilities(samples: Any) -> None:
    kriging = Kriging(VARIOGRAM).fit(*samples)
    cells = kriging.grid(region=(0, 8, 0, 8), spacing=2.0, variance=True)
    maps = exceedance_map(cells, [0.0, 1.0])
    x, y = np.meshgrid(cells["easting"], cells["northing"])
    expected = exceedance(kriging.kriged((x, y), variance=True), [0.0, 1.0])
    np.testing.assert_allclose(maps["probability"].values.reshape(2, -1).T, expected.probability[:, 0], atol=0.05)
    assert maps["probability"].sizes == {"threshold": 2, "northing": 5, "easting": 5}
    assert (maps["probability_lower"] <= maps["probability_upper"]).all()
    with pytest.raises(InputError, match="the map has no variance, variance_lower"):
        exceedance_map(kriging.grid(region=(0, 8, 0, 8), spacing=4.0), [0.0])


def test_order_relations() -> None:
    rows = ordered(np.array([[-0.1, 0.5, 0.3, 1.2], [0.1, 0.2, 0.3, 0.4]]))
    np.testing.assert_allclose(rows, [[0.0, 0.4, 0.4, 1.0], [0.1, 0.2, 0.3, 0.4]])


def test_indicators_are_kriged_with_one_variogram(samples: Any) -> None:
    coordinates, z = samples
    limits = [0.5, 1.0, 1.5]
    model = Variogram("spherical", psill=0.2, range=4.0, nugget=0.02)
    kriging = IndicatorKriging(Kriging(model), limits).fit(coordinates, z)
    points = (np.array([1.0, 4.0, 6.5]), np.array([2.0, 4.0, 1.0]))
    raw = np.stack([Kriging(model).fit(coordinates, (z <= limit).astype(float)).predict(points) for limit in limits])
    np.testing.assert_allclose(kriging.predict(points), ordered(raw.T).T, atol=1e-3)
    maps = kriging.grid(region=(0, 8, 0, 8), spacing=4.0)
    assert maps["probability"].sizes == {"threshold": 3, "northing": 3, "easting": 3}
    assert (np.diff(maps["probability"], axis=0) >= 0.0).all()
    with pytest.raises(InputError, match="all samples are at most the threshold 99"):
        IndicatorKriging(Kriging(model), [1.0, 99.0]).fit(coordinates, z)
    with pytest.raises(InputError, match="finite numbers that rise"):
        IndicatorKriging(Kriging(model), [1.0, 1.0])
