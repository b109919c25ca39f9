"""Empirical variograms against constants from GSTools 1.7.0 and scikit-gstat's formulas, and against all pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy

from dkgp.errors import InputError
from dkgp.kriging import empirical
from dkgp.kriging.empirical import drift_columns, empirical_variogram, residuals, variogram_map

X = np.array([(0, 0), (1, 0), (0, 2), (3, 1), (2, 3), (4, 4)], dtype=float)
Z = np.array([1, 2, 0.5, 3, 2.5, 4])
SIX = {
    "matheron": (0.5, 0.8333333333, 1.4375, 3.625),
    "cressie": (0.5020080321, 1.1085737552, 1.6373023712, 4.0119607196),
    "dowd": (1.099, 1.7171875, 2.47275, 6.86875),
}


@pytest.fixture
def forty() -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    x = rng.random((40, 2)) * 10
    return x.T, np.sin(x[:, 0]) + x[:, 1] / 5 + 0.1 * rng.standard_normal(40)


@pytest.mark.parametrize("estimator", SIX)
def test_estimates_of_six_samples_are_those_of_other_programs(estimator: str) -> None:
    result = empirical_variogram(tuple(X.T), Z, bins=[0, 1.5, 2.5, 3.5, 4.5], estimator=estimator)
    assert result.count.tolist() == [1, 6, 4, 2]
    assert (result.sampling_error == 0.0).all()
    np.testing.assert_allclose(result.gamma, SIX[estimator], rtol=1e-9)


# GSTools' `vario_estimate` of the forty samples; direction 30 degrees with angles_tol pi / 8, and bandwidth 0.8.
FORTY: list[tuple[dict[str, Any], tuple[float, ...], tuple[int, ...]]] = [
    ({}, (0.07538436, 0.19771288, 0.60322541, 0.77230859), (20, 62, 83, 89)),
    ({"estimator": "cressie"}, (0.06648604, 0.18016167, 0.64514883, 1.03993538), (20, 62, 83, 89)),
    ({"direction": 30.0}, (0.07374554, 0.25572716, 0.88581391, 1.17720035), (6, 17, 24, 18)),
    ({"direction": 210.0}, (0.07374554, 0.25572716, 0.88581391, 1.17720035), (6, 17, 24, 18)),
    ({"direction": 30.0, "bandwidth": 0.8}, (0.07374554, 0.25572716, 0.94808855, 1.22256561), (6, 17, 22, 14)),
]


@pytest.mark.parametrize(("options", "gamma", "count"), FORTY)
def test_estimates_and_directions_are_those_of_gstools(
    forty: Any, options: dict[str, Any], gamma: tuple[float, ...], count: tuple[int, ...]
) -> None:
    result = empirical_variogram(*forty, bins=[0, 1, 2, 3, 4], **options)
    assert tuple(result.count) == count
    np.testing.assert_allclose(result.gamma, gamma, rtol=1e-7)


def test_genton_takes_signed_differences(forty: Any) -> None:
    """scikit-gstat compares absolute differences, whose estimate is smaller."""
    (x, y), z = forty
    result = empirical_variogram((x, y), z, bins=[1.0, 2.0], estimator="genton")
    one, other = np.triu_indices(40, 1)
    lag = np.hypot(x[one] - x[other], y[one] - y[other])
    q = (z[one] - z[other])[(lag >= 1.0) & (lag < 2.0)]
    i, j = np.triu_indices(len(q), 1)
    k = 32 * 31 // 2
    signed = 0.5 * (2.219 * np.sort(np.abs(q[i] - q[j]))[k - 1]) ** 2
    assert len(q) == 62
    assert result.gamma[0] == pytest.approx(signed, rel=1e-12)
    # scikit-gstat 1.x of these differences without and with their signs; its quantile interpolates.
    assert result.gamma[0] > 3.0 * 0.06838769539351368
    assert result.gamma[0] == pytest.approx(0.23074610547895572, rel=0.005)


def test_a_bin_contains_its_lower_edge() -> None:
    result = empirical_variogram(([0.0, 1.0, 3.0], [0.0, 0.0, 0.0]), [0.0, 1.0, 5.0], bins=[0, 1, 2, 3])
    assert result.count.tolist() == [0, 1, 1]
    assert not result.known[0]
    assert np.isnan(result.lag[0])
    assert result.to_dict()["gamma"][0] is None


@pytest.mark.parametrize("estimator", empirical.ESTIMATORS)
def test_sampled_pairs_are_within_their_errors_of_all_pairs(monkeypatch: Any, estimator: str) -> None:
    rng = np.random.default_rng(5)
    x = rng.random((2, 300)) * 100
    z = np.sin(x[0] / 20) + 0.3 * rng.standard_normal(300)
    whole = empirical_variogram(tuple(x), z, bins=3, estimator=estimator)
    monkeypatch.setattr(empirical, "MOST_PAIRS", 1000)
    monkeypatch.setattr(empirical, "_CANDIDATES", 20_000)
    monkeypatch.setattr(empirical, "BOOTSTRAPS", 50)
    part = empirical_variogram(tuple(x), z, bins=3, estimator=estimator, pairs=2000, seed=1)
    assert (part.used == 2000).all()
    assert (part.sampling_error > 0.0).all()
    assert (np.abs(part.gamma - whole.gamma) < 4.0 * part.sampling_error).all()
    # Not needlessly wide: the errors of 2,000 pairs are a few hundredths.
    assert (part.sampling_error < 0.15 * whole.gamma).all()
    np.testing.assert_allclose(part.count, whole.count, rtol=0.1)
    again = empirical_variogram(tuple(x), z, bins=3, estimator=estimator, pairs=2000, seed=1)
    assert (again.gamma == part.gamma).all()
    assert (again.sampling_error == part.sampling_error).all()


def test_sampled_pairs_are_uniform_over_a_bin(monkeypatch: Any) -> None:
    """The samples are clustered: cells have very different numbers of points."""
    rng = np.random.default_rng(6)
    x = np.concatenate([rng.random((100, 2)) * 10, 5 + 0.5 * rng.random((100, 2))]).T
    z = np.where(np.arange(200) < 100, 0.0, 10.0) + rng.standard_normal(200)
    whole = empirical_variogram(tuple(x), z, bins=[0, 1, 3])
    monkeypatch.setattr(empirical, "MOST_PAIRS", 1000)
    monkeypatch.setattr(empirical, "_CANDIDATES", 20_000)
    # More pairs than the bin has: they are drawn with replacement, and the error is not zero.
    part = empirical_variogram(tuple(x), z, bins=[0, 1, 3], pairs=5000, seed=2)
    assert (part.sampling_error > 0.0).all()
    assert (np.abs(part.gamma - whole.gamma) < 4.0 * part.sampling_error).all()
    np.testing.assert_allclose(part.lag, whole.lag, rtol=0.02)


def test_residuals_of_a_drift_have_no_trend(rng: Any) -> None:
    x = rng.random((2, 200)) * 1e3 + 5e6
    noise = rng.standard_normal(200)
    z = 3.0 * x[0] - 2.0 * x[1] + noise
    flat = empirical_variogram(tuple(x), z, degree=1)
    assert flat.of == "residuals of least squares"
    assert flat.to_dict()["of"] == flat.of
    # least squares in the raw coordinates, by another route
    design = np.column_stack([np.ones(200), (x - 5e6).T])
    expected = z - design @ np.linalg.lstsq(design, z, rcond=None)[0]
    np.testing.assert_allclose(flat.variance, expected.var(), rtol=1e-6)
    covariate = x[0] ** 2
    bent = empirical_variogram(tuple(x), z + covariate, degree=1, covariates=covariate)
    np.testing.assert_allclose(bent.gamma, flat.gamma, rtol=0.1)
    with pytest.raises(InputError, match="the drift has 2 columns, and the samples determine 1"):
        empirical_variogram(tuple(x), z, covariates=np.ones(200))
    with pytest.raises(InputError, match="`degree` of a drift is 0, 1 or 2; got 3"):
        empirical_variogram(tuple(x), z, degree=3)
    assert drift_columns(x.T, 2).shape == (200, 6)
    assert np.abs(residuals(z, drift_columns(x.T, 2))).mean() < 1.0


def test_a_variogram_map_is_that_of_lag_vectors(forty: Any) -> None:
    (x, y), z = forty
    result = variogram_map((x, y), z, max_lag=4.0, cells=4)
    assert result.gamma.shape == (9, 9)
    assert result.n_samples == 40
    assert result.centres.tolist() == list(range(-4, 5))
    east, north = x[:, None] - x[None], y[:, None] - y[None]
    inside = (np.abs(east - 2.0) < 0.5) & (np.abs(north + 1.0) < 0.5)
    expected = 0.5 * np.mean((z[:, None] - z[None])[inside] ** 2)
    assert result.count[3, 6] == inside.sum()
    assert result.gamma[3, 6] == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(result.gamma, result.gamma[::-1, ::-1], rtol=1e-14)
    np.testing.assert_array_equal(result.count, result.count[::-1, ::-1])


def test_a_variogram_map_shows_the_axis(monkeypatch: Any, rng: Any) -> None:
    x = rng.random((2, 900)) * 100
    z = np.sin((x[0] - x[1]) / 15.0)  # constant along 45 degrees
    monkeypatch.setattr(empirical, "MOST_PAIRS", 100_000)
    result = variogram_map(tuple(x), z, max_lag=30.0, cells=3, seed=4)
    assert result.n_samples == 447
    assert result.gamma[5, 5] < 0.1 * result.gamma[1, 5]


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"estimator": "madogram"}, "`estimator` is one of matheron, cressie, dowd, genton; got 'madogram'"),
    ({"bins": 0}, "`bins` is a whole number of at least 1, or edges; got 0"),
    ({"bins": [0, 2, 1]}, "the edges `bins` must rise from 0 or more"),
    ({"bins": [0, 1], "max_lag": 2}, "`max_lag` is the last of the edges"),
    ({"max_lag": -1.0}, "`max_lag` must be positive and finite; got -1.0"),
    ({"bandwidth": 1.0}, "`bandwidth` belongs to a `direction`"),
    ({"direction": 0.0, "angle_tolerance": 0.0}, "`angle_tolerance` is above 0 and at most 90 degrees"),
    ({"pairs": 5}, "`pairs` must be at least 100; got 5"),
]


@pytest.mark.parametrize(("options", "message"), REFUSALS)
def test_refusals_name_the_parameter(forty: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        empirical_variogram(*forty, **options)
    assert message in str(refused.value)


def test_bad_data_are_refused() -> None:
    with pytest.raises(InputError, match="data has 2 values; expected 3"):
        empirical_variogram(([0.0, 1.0, 2.0],), [1.0, 2.0])
    with pytest.raises(InputError, match="data is not finite in 1 rows"):
        empirical_variogram(([0.0, 1.0, 2.0],), [1.0, np.nan, 2.0])
    with pytest.raises(InputError, match="needs at least 2 samples; got 1"):
        empirical_variogram(([0.0],), [1.0])
    with pytest.raises(InputError, match="`max_lag` must be positive"):
        empirical_variogram(([1.0, 1.0],), [1.0, 2.0])  # all samples at one place
    with pytest.raises(InputError, match="coordinates look like longitude and latitude"):
        empirical_variogram(([-118.3, -117.9], [34.2, 34.5]), [1.0, 2.0])


def test_hostile_data_have_plain_results(forty: Any) -> None:
    (x, y), z = forty
    edges = [0, 1, 2, 3, 4]
    constant = empirical_variogram((x, y), np.ones(40), bins=edges)
    assert (constant.gamma == 0.0).all()
    assert constant.variance == 0.0
    twice = empirical_variogram((np.repeat(x, 2), np.repeat(y, 2)), np.repeat(z, 2), bins=edges)
    assert twice.count.tolist() == [40 + 4 * 20, 4 * 62, 4 * 83, 4 * 89]  # pairs at one place are in the first bin
    far = empirical_variogram((x + 1e9, y - 1e9), z, bins=edges)
    np.testing.assert_allclose(far.gamma, empirical_variogram((x, y), z, bins=edges).gamma, rtol=1e-6)
    one = empirical_variogram((x, y), z, bins=1)
    assert one.known.all()
    assert one.gamma.shape == (1,)


def test_a_million_points_take_a_bounded_sample() -> None:
    rng = np.random.default_rng(8)
    x = rng.random((2, 1_000_000)) * 1000
    z = np.sin(x[0] / 50)
    result = empirical_variogram(tuple(x), z, bins=3, max_lag=90.0, pairs=20_000)
    assert (result.used == 20_000).all()
    # Of uniform points at lag vectors h: mean of 1 - cos(h_x / 50) over x, halved: (1 - J0(h / 50)) / 2.
    from scipy.special import j0

    np.testing.assert_allclose(result.gamma, (1.0 - j0(result.lag / 50)) / 2, rtol=0.2)
    # Pairs at a lag vector h: those of a square moved by h, (1 - |h_x|) (1 - |h_y|) of all, over its directions.
    share = result.edges / 1000.0
    expected = 5e11 * np.diff(np.pi * share**2 - 8.0 / 3.0 * share**3 + 0.5 * share**4)
    np.testing.assert_allclose(result.count, expected, rtol=0.03)


def test_lags_on_the_globe_are_chords_in_km() -> None:
    pytest.importorskip("pyproj")
    result = empirical_variogram(([10.0, 11.0], [50.0, 50.5]), [0.0, 2.0], crs=4326, bins=[0.0, 200.0])
    east, north = np.radians([10.0, 11.0]), np.radians([50.0, 50.5])
    points = 6371.0 * np.array([np.cos(north) * np.cos(east), np.cos(north) * np.sin(east), np.sin(north)])
    assert result.lag[0] == pytest.approx(np.linalg.norm(points[:, 0] - points[:, 1]), rel=1e-12)
    assert result.unit == "km"
    assert result.gamma[0] == 2.0
    with pytest.raises(InputError, match="directions are those of a plane"):
        empirical_variogram(([10.0, 11.0], [50.0, 50.5]), [0.0, 2.0], crs=4326, direction=0.0)
    with pytest.raises(InputError, match="a variogram map needs two coordinates of a plane"):
        variogram_map(([10.0, 11.0], [50.0, 50.5]), [0.0, 2.0], crs=4326)


def test_a_variogram_is_printed_as_a_table(rng: np.random.Generator) -> None:
    result = empirical_variogram(tuple(rng.random((2, 30))), rng.standard_normal(30), bins=3)
    title, heads, *rows = repr(result).splitlines()
    assert title == "Semivariances of values, matheron"
    assert heads.split() == ["lag", "gamma", "pairs"]
    assert [float(row.split()[1]) for row in rows] == pytest.approx(list(result.gamma), rel=1e-5)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_candidates_are_all_pairs_of_a_bin_with_equal_chances(rng: np.random.Generator, dimensions: int) -> None:
    places = rng.random((60, dimensions)) * 10.0
    distances = scipy.spatial.distance.cdist(places, places)
    last = None
    for low, high in ((0.0, 1.0), (1.0, 2.0), (3.0, 3.4), (0.5, 2.5)):
        cells = last = empirical._Cells.of(places, low, high, last)
        inside = (distances >= low) & (distances < high) & ~np.eye(60, dtype=bool)
        # Every pair of a bin is in one pair of cubes.
        cube = np.repeat(np.arange(len(cells.cubes.size)), cells.cubes.size)[np.argsort(cells.cubes.order)]
        pairs = {tuple(pair) for pair in cells.pairs.tolist()}
        assert len(pairs) == len(cells.pairs)
        assert all((cube[i], cube[j]) in pairs for i, j in zip(*np.nonzero(inside), strict=True))
        one, other = cells.candidates(rng, 200_000)
        drawn = inside[one, other]
        counts = np.bincount(one[drawn] * 60 + other[drawn], minlength=3600)[inside.reshape(-1)]
        expected = drawn.sum() / inside.sum()
        assert np.abs(counts - expected).max() <= 6.0 * np.sqrt(expected)
        assert cells.total * drawn.mean() == pytest.approx(inside.sum(), rel=0.05)


def test_bootstraps_of_genton_are_estimates_of_samples_with_replacement() -> None:
    q = np.random.default_rng(3).standard_normal(40)
    rng, again = np.random.default_rng(5), np.random.default_rng(5)
    expected = [empirical._genton(q[again.integers(0, 40, 40)], again) for _ in range(empirical.BOOTSTRAPS)]
    np.testing.assert_allclose(empirical._genton_bootstraps(q, rng), expected, rtol=1e-12)
