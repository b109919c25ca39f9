"""`Kriging`: inputs of all kinds, tables, weights, stores, and refusals by their words."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray
from sklearn.base import clone
from sklearn.model_selection import KFold

import dkgp
from dkgp.errors import InputError, StoreError
from dkgp.kriging import Cokriging, Kriging, Variogram
from dkgp.kriging.field import tolerance_of

X = np.array([(0, 0), (1, 0), (0, 2), (3, 1), (2, 3), (4, 4)], dtype=float)
Z = np.array([1, 2, 0.5, 3, 2.5, 4])
EXPONENTIAL = Variogram("exponential", psill=2, range=1.5, nugget=0.25)
COORDINATES = tuple(X.T)


def fitted(variogram: Any = EXPONENTIAL, **settings: Any) -> Kriging:
    return Kriging(variogram, tolerance=1e-13, **settings).fit(COORDINATES, Z)


def test_the_room_is_reached_from_the_package() -> None:
    assert dkgp.kriging.Kriging is Kriging
    assert set(dkgp.kriging.__all__) >= {"Kriging", "Variogram", "OrdinaryKriging", "empirical_variogram"}


# -------------------------------------------------------------------------------------------------------- predictions


def test_weights_are_those_of_dense_algebra() -> None:
    kriging = fitted()
    weights = kriging.weights((1.0, 1.0))
    expected = (
        0.1481795013348209,
        0.3368027647750078,
        0.2432494960806714,
        0.1367536125634222,
        0.1067383022015986,
        0.028276323044479,
    )
    np.testing.assert_allclose(weights, expected, rtol=1e-12)
    assert weights.sum() == pytest.approx(1.0, rel=1e-13)
    assert weights @ Z == pytest.approx(float(kriging.predict((1.0, 1.0))), rel=1e-13)


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "simple", "mean": 2.0},
        {"kind": "universal", "degree": 1},
        {"kind": "universal", "degree": 1, "covariates": ("d",)},
    ],
)
def test_weights_reproduce_the_drift_and_the_mean(settings: dict[str, Any]) -> None:
    d, at = np.array([0, 1, 0.3, 2, 1.7, 2.9]), 0.8
    covariates = {"d": d} if "covariates" in settings else None
    point = {"d": at} if covariates else None
    kriging = Kriging(EXPONENTIAL, tolerance=1e-13, **settings).fit(COORDINATES, Z, covariates=covariates)
    weights = kriging.weights((1.0, 2.0), covariates=point)
    mean = float(kriging.predict((1.0, 2.0), covariates=point))
    if settings["kind"] == "simple":
        assert 2.0 + weights @ (Z - 2.0) == pytest.approx(mean, rel=1e-12)
        return
    assert weights @ Z == pytest.approx(mean, rel=1e-12)
    np.testing.assert_allclose(weights @ np.column_stack([np.ones(6), X]), [1, 1, 2], rtol=1e-12)
    if covariates:
        assert weights @ d == pytest.approx(at, rel=1e-12)


def test_weights_of_several_points_are_refused() -> None:
    with pytest.raises(InputError, match="weights are those of one point; got 2"):
        fitted().weights(([0, 1], [0, 1]))


def test_a_profile_has_even_steps() -> None:
    table = fitted().profile((0, 0), (3, 4), 6, variance=True)
    assert list(table) == [
        "easting",
        "northing",
        "distance",
        "scalars",
        *(f"scalars_{part}" for part in ("mean_error_bound", "variance", "variance_lower", "variance_upper")),
    ]
    np.testing.assert_allclose(table["distance"], np.arange(6.0), atol=1e-14)
    np.testing.assert_allclose(table["northing"], 0.8 * np.arange(6.0), atol=1e-14)
    mean, variance = fitted().predict((table["easting"], table["northing"]), return_variance=True)
    np.testing.assert_array_equal(table["scalars"], mean)
    np.testing.assert_array_equal(table["scalars_variance"], variance)


def test_a_profile_on_the_globe_is_measured_in_km() -> None:
    kriging = Kriging(Variogram("exponential", psill=2, range=150, nugget=0.25), metric="sphere")
    table = kriging.fit((X[:, 0] + 10, X[:, 1] + 50), Z).profile((10, 50), (10, 51), 101)
    assert table["distance"].iloc[-1] == pytest.approx(6371 * np.pi / 180, rel=1e-5)
    assert list(table)[:2] == ["longitude", "latitude"]


def test_scattered_points_lie_in_the_region_and_repeat_by_seed() -> None:
    kriging = fitted()
    table, same, other = (kriging.scatter(size=50, random_state=seed) for seed in (1, 1, 2))
    pd.testing.assert_frame_equal(table, same)
    assert not table.equals(other)
    assert table["easting"].between(0, 4).all()
    assert kriging.scatter(region=(10, 11, 0, 1), size=5)["easting"].between(10, 11).all()
    np.testing.assert_array_equal(table["scalars"], kriging.predict((table["easting"], table["northing"])))


def test_execute_predicts_observations() -> None:
    kriging = fitted()
    z, ss = kriging.execute("grid", [0.0, 1.0], [0.0, 1.0, 2.0])
    assert z.shape == ss.shape == (3, 2)
    assert z[0, 0] == pytest.approx(1.130652635064538, rel=1e-12)
    assert ss[0, 0] == pytest.approx(0.216307595600027 + 0.25, rel=1e-12)
    assert kriging.score(COORDINATES, Z) > 0.9


# ------------------------------------------------------------------------------------------------------------- inputs


def test_frames_and_arrays_with_dimensions() -> None:
    expected = fitted().predict(([1, 2.5], [1, 2]))
    frame = pd.DataFrame({"x": X[:, 0], "y": X[:, 1], "zinc": Z})
    for coordinates in ((frame.x, frame.y), frame[["x", "y"]], [frame.x.to_list(), frame.y.to_list()]):
        kriging = Kriging(EXPONENTIAL, tolerance=1e-13).fit(coordinates, frame.zinc)
        np.testing.assert_array_equal(kriging.predict(pd.DataFrame({"a": [1, 2.5], "b": [1, 2]})), expected)
    assert list(kriging.drift_) == ["zinc"]
    easting = xarray.DataArray([0.0, 1.0, 2.0], dims="easting")
    northing = xarray.DataArray([0.0, 1.0], dims="northing")
    field = easting + 10 * northing
    for values in (field, field.T):
        kriging = Kriging(Variogram("spherical", psill=1, range=4)).fit((easting, northing), values)
        for point in ((2.0, 1.0), (1.0, 0.0), (0.0, 1.0)):
            assert float(kriging.predict(point)) == pytest.approx(point[0] + 10.0 * point[1])
        assert kriging.predict((easting, northing)).shape == (2, 3)
        assert kriging.score((easting, northing), values) == pytest.approx(1.0)
        _, residuals, _ = kriging.filter((easting, northing), values)
        np.testing.assert_allclose(residuals, 0.0, atol=1e-9)
    weak = Kriging(Variogram("spherical", psill=1, range=4)).fit((easting, northing), field, noise=0.1 + field)
    other = Kriging(weak.variogram).fit((easting, northing), field, noise=(0.1 + field).T)
    np.testing.assert_array_equal(other.predict((1.5, 0.5)), weak.predict((1.5, 0.5)))
    kriging = Kriging(Variogram("spherical", psill=1, range=4)).fit((easting, northing), (field, field.T))
    np.testing.assert_allclose(kriging.predict((1.0, 0.0)), [1.0, 1.0])


def test_points_with_a_reference_are_transformed() -> None:
    geopandas = pytest.importorskip("geopandas")
    points = geopandas.GeoDataFrame(
        {"zinc": Z}, geometry=geopandas.points_from_xy(*(X.T * 100 + 500_000)), crs="EPSG:32611"
    )
    variogram = Variogram("exponential", psill=2, range=150.0, nugget=0.25)
    kriging = Kriging(variogram).fit(points, points.zinc)
    assert kriging.space_.crs is not None
    assert kriging.space_.metric == "plane"
    there = points.to_crs("EPSG:4326")
    np.testing.assert_allclose(kriging.predict(there), kriging.predict(points.geometry), rtol=1e-6)
    lines = geopandas.GeoSeries(points.buffer(1.0))
    with pytest.raises(InputError, match="samples are points; got Polygon"):
        kriging.predict(lines)


def test_time_is_a_coordinate_and_dates_are_days() -> None:
    days = np.array([0, 1, 2, 3, 4, 5.0])
    dates = np.datetime64("1970-01-01", "ns") + (days * 86_400e9).astype("timedelta64[ns]")
    by_days, by_dates = (
        Kriging(EXPONENTIAL, time_scale=0.5, tolerance=1e-13).fit((*COORDINATES, time), Z) for time in (days, dates)
    )
    np.testing.assert_array_equal(
        by_days.predict((1, 1, 2.5)), by_dates.predict((1, 1, np.datetime64("1970-01-03T12")))
    )
    K = 2 * np.exp(-np.linalg.norm((d := np.column_stack([X, days / 2]))[:, None] - d[None], axis=2) / 1.5)
    k = 2 * np.exp(-np.linalg.norm(d - [1, 1, 1.25], axis=1) / 1.5)
    S = np.linalg.solve(K + 0.25 * np.eye(6), np.column_stack([Z, np.ones(6), k]))
    beta = S[:, 0].sum() / S[:, 1].sum()
    assert float(by_days.predict((1, 1, 2.5))) == pytest.approx(beta + k @ (S[:, 0] - beta * S[:, 1]), rel=1e-12)
    assert by_days.region_ == (0.0, 4.0, 0.0, 4.0)


def test_regions_of_samples_with_heights_are_those_of_the_plane() -> None:
    kriging = Kriging(EXPONENTIAL).fit((*COORDINATES, [100.0, 101, 102, 103, 104, 105]), Z)
    assert kriging.region_ == (0.0, 4.0, 0.0, 4.0)


# --------------------------------------------------------------------------------------------------------- variograms


def test_models_of_gstools_dicts_and_names() -> None:
    expected = fitted().predict(([1, 2.5], [1, 2]))
    np.testing.assert_array_equal(fitted(EXPONENTIAL.to_dict()).predict(([1, 2.5], [1, 2])), expected)

    class Exponential:
        var, nugget, len_rescaled, anis, angles, latlon = 2.0, 0.25, 1.5, [1.0], [0.0], False

    np.testing.assert_array_equal(fitted(Exponential()).predict(([1, 2.5], [1, 2])), expected)
    with pytest.raises(InputError, match="`variogram` is a Variogram, a name, a dict or a model of GSTools; got 3"):
        fitted(3)


def test_a_name_is_fitted_to_the_samples(rng: np.random.Generator) -> None:
    x, y = rng.uniform(0, 10, (2, 400))
    distance = np.hypot(x[:, None] - x, y[:, None] - y)
    factor = np.linalg.cholesky(2 * np.exp(-distance / 1.5) + 0.3 * np.eye(400))
    kriging = Kriging("exponential").fit((x, y), factor @ rng.standard_normal(400))
    assert 1.0 < kriging.variogram_.total_sill < 4.0
    assert 0.5 < kriging.variogram_.range < 5.0
    best = Kriging(["exponential", "gaussian"]).fit((x, y), factor @ rng.standard_normal(400))
    assert best.variogram_.model == "exponential"
    with pytest.raises(InputError, match="the values do not vary about their mean"):
        Kriging("exponential").fit((x, y), np.ones(400))
    with pytest.raises(InputError, match="fitted to one value per sample"):
        Kriging("exponential").fit((x, y), (x, y))


# ------------------------------------------------------------------------------------------------------------ settings


def test_stores_have_all_settings(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "kind": "universal",
        "degree": 2,
        "of": "observation",
        "duplicates": "first",
        "metric": "plane",
        "earth": "wgs84",
        "tolerance": 1e-9,
        "product_error": "none",
        "variance_gap": 0.01,
        "random_state": 7,
    }
    x, y = np.meshgrid(np.arange(4.0), np.arange(3.0))
    kriging = Kriging(EXPONENTIAL, **settings).fit((x, y), (x + y, x * y))
    kriging.save(tmp_path / "z.zarr")
    loaded = Kriging.load(tmp_path / "z.zarr")
    assert {name: loaded.get_params()[name] for name in settings} == settings
    assert loaded.variogram == EXPONENTIAL
    assert loaded.drift_ == kriging.drift_
    for one, other in zip(loaded.predict((1.5, 0.5)), kriging.predict((1.5, 0.5)), strict=True):
        assert one == other
    again = loaded.fit((x, y), x + y)
    assert float(again.predict((1.5, 0.5))) == pytest.approx(2.0, abs=1e-6)


def test_stores_of_other_models_are_refused(tmp_path: Path) -> None:
    model = dkgp.GPRegressor().fit(X, Z)
    model.save(str(tmp_path / "model.zarr"))
    with pytest.raises(StoreError, match="is no kriged field, but another model"):
        Kriging.load(tmp_path / "model.zarr")


def test_clones_have_the_settings_and_no_fit() -> None:
    kriging = fitted(of="observation", covariates=(), kind="simple", mean=1.5)
    copy = clone(kriging)
    assert not hasattr(copy, "field_")
    assert copy.get_params()["mean"] == 1.5
    assert copy.set_params(kind="ordinary", mean=None).fit(COORDINATES, Z).variogram_ == EXPONENTIAL


# ------------------------------------------------------------------------------------------------------------ refusals


REFUSED: dict[str, tuple[dict[str, Any], tuple[Any, ...], str]] = {
    "degrees": (
        {},
        ((np.linspace(-118.3, -117.9, 6), np.linspace(34.2, 34.5, 6)), Z),
        r"coordinates look like longitude and latitude \(-118.3..-117.9, 34.2..34.5\), and no CRS was given",
    ),
    "kind": ({"kind": "block"}, (COORDINATES, Z), "`kind` is one of simple, ordinary, universal; got 'block'"),
    "mean": ({"mean": 1.0}, (COORDINATES, Z), "simple kriging has a known `mean`, and no other kind has"),
    "degree": ({"degree": 1}, (COORDINATES, Z), "`degree` and `covariates` belong to universal kriging"),
    "no degree": ({"kind": "universal"}, (COORDINATES, Z), "`degree` of universal kriging is 1 or 2, or 0 with"),
    "of": ({"of": "mean"}, (COORDINATES, Z), "`of` is one of signal, field, observation; got 'mean'"),
    "duplicates": ({"duplicates": "last"}, (COORDINATES, Z), "`duplicates` is one of merge, keep, mean"),
    "too few values": ({}, (COORDINATES, Z[:5]), "data has 5 values; expected 6, one for each sample"),
    "missing values": (
        {},
        (COORDINATES, np.where(Z > 2, np.nan, Z)),
        "data z is missing or infinite at 3 of 6 samples, first in row 3 .*drop_missing",
    ),
    "missing coordinates": ({}, ((X[:, 0], [0, 0, 2, 1, 3, np.inf]), Z), "the coordinate northing is inf in row 5"),
    "both weights": ({}, (COORDINATES, Z, Z, Z), "give `weights` .*or `noise` .*, not both"),
    "dependent": (
        {"kind": "universal", "degree": 1},
        ((X[:, 0], 2 * X[:, 0] + 1), Z),
        "a linear mean cannot tell .*easting and northing apart",
    ),
    "spherical in 4 dimensions": (
        {"variogram": Variogram("spherical", psill=1, range=2, nugget=0.1), "time_scale": 1.0},
        ((*COORDINATES, Z, Z), Z),
        "a spherical variogram is no covariance in 4 dimensions",
    ),
    "singular": (
        {"variogram": Variogram("gaussian", psill=1, range=1e5)},
        (COORDINATES, Z),
        r"the covariance matrix is singular to float64 \(condition > 1e15\); give a nugget of at least 1e-8 of the",
    ),
    "contradiction": (
        {"variogram": Variogram("exponential", psill=1, range=2, nugget=0.1, nugget_is="microscale")},
        (((181072.0, 181072.0, 0.0), (333611.0, 333611.0, 0.0)), (1022.0, 640.0, 1.0)),
        r"2 samples at \(181072, 333611\) have values 1022 and 640, and the nugget is all micro-scale: no field passes",
    ),
    "refused replicates": (
        {"duplicates": "refuse"},
        (([0.0, 1.0, 1.0], [0.0, 2.0, 2.0]), (1.0, 2.0, 3.0)),
        r"1 of 3 samples lie at the place of another one, first in row 2, at \(1, 2\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_inputs_that_cannot_be_worked_with_are_refused(case: str) -> None:
    settings, arguments, words = REFUSED[case]
    kriging = Kriging(**{"variogram": EXPONENTIAL, **settings})
    noise = {"noise": arguments[3]} if len(arguments) > 3 else {}
    with pytest.raises(InputError, match=words):
        kriging.fit(arguments[0], np.asarray(arguments[1]), *arguments[2:3], **noise)


def test_a_gaussian_variogram_without_a_nugget_warns() -> None:
    with pytest.warns(UserWarning, match="a gaussian variogram without a nugget is ill-conditioned"):
        fitted(Variogram("gaussian", psill=1, range=1.0))


def test_a_singular_part_of_many_samples_is_refused(rng: np.random.Generator) -> None:
    x, y = rng.uniform(0, 1, (2, 3000))
    with pytest.raises(InputError, match="singular to float64"):
        Kriging(Variogram("gaussian", psill=1, range=0.5)).fit((x, y), x)


def test_a_nugget_of_zero_interpolates(rng: np.random.Generator) -> None:
    variogram = Variogram("exponential", psill=2, range=1.5)
    kriging = Kriging(variogram, tolerance=1e-13).fit(COORDINATES, Z)
    mean, bound, variance, _, upper = kriging.predict(COORDINATES, return_bounds=True, return_variance=True)
    np.testing.assert_allclose(mean, Z, rtol=1e-14)
    assert (np.abs(mean - Z) <= bound).all()
    assert (variance == 0.0).all()
    assert (upper == 0.0).all()
    K = 2 * np.exp(-np.linalg.norm(X[:, None] - X[None], axis=2) / 1.5)
    k = 2 * np.exp(-np.linalg.norm(X - [1, 1], axis=1) / 1.5)
    S = np.linalg.solve(K, np.column_stack([Z, np.ones(6), k]))
    beta = S[:, 0].sum() / S[:, 1].sum()
    mean, variance = kriging.predict((1.0, 1.0), return_variance=True)
    assert float(mean) == pytest.approx(beta + k @ (S[:, 0] - beta * S[:, 1]), rel=1e-11)
    assert float(variance) == pytest.approx(2 - k @ S[:, 2] + (1 - S[:, 2].sum()) ** 2 / S[:, 1].sum(), rel=1e-10)


@pytest.mark.parametrize(
    ("n", "noise", "expected"),
    [
        (4000, 1e-3, 1e-10),
        (4001, 1e-9, 0.01 * np.sqrt(1e-9 / 4001)),
        (10**6, 1.0, 1e-6),
        (10**6, 0.01, 1e-6),
        (10**6, 1e-4, 1e-7),
        (10**6, 1e-12, 1e-10),
    ],
)
def test_the_tolerance_follows_the_noise_and_the_number_of_samples(n: int, noise: float, expected: float) -> None:
    assert tolerance_of("auto", n, noise) == pytest.approx(expected)
    assert tolerance_of(1e-3, n, noise) == 1e-3


def test_means_are_proven_to_a_hundredth_of_the_deviation(rng: np.random.Generator) -> None:
    x, y = rng.uniform(0, 70, (2, 4500))
    kriging = Kriging(Variogram("exponential", psill=2, range=3, nugget=0.2)).fit((x, y), np.sin(x) + np.cos(y))
    points = tuple(rng.uniform(0, 70, (2, 20)))
    _, bound, variance, _, _ = kriging.predict(points, return_bounds=True, return_variance=True)
    assert (bound <= 0.02 * np.sqrt(variance)).all()
    for wrong in (0, -1e-3, "loose"):
        with pytest.raises(InputError, match="`tolerance` is a positive number or 'auto'"):
            fitted_with(wrong)


def fitted_with(tolerance: Any) -> Kriging:
    return Kriging(EXPONENTIAL, tolerance=tolerance).fit(COORDINATES, Z)


# ------------------------------------------------------------------------------------------------- noise by sample


def test_noise_by_sample_is_stored_once(tmp_path: Path) -> None:
    noise = np.array([0.0, 0.3, 0.1, 0.0, 2.0, 0.5])
    variogram = Variogram("exponential", psill=2, range=1.5, nugget=(0.0, 0.25))
    kriging = Kriging(variogram, of="field", tolerance=1e-13).fit(COORDINATES, Z, noise=noise)
    kriging.save(tmp_path / "z.zarr")
    loaded = Kriging.load(tmp_path / "z.zarr")
    np.testing.assert_allclose(loaded.field_.errors, noise, rtol=1e-14)
    assert (loaded.field_.errors[[0, 3]] == 0.0).all()
    assert not any(isinstance(value, list) and len(value) == 6 for value in loaded.field_.about.values())
    mean, variance = loaded.predict(COORDINATES, return_variance=True)
    K = 2 * np.exp(-np.linalg.norm(X[:, None] - X[None], axis=2) / 1.5) + np.diag(noise + 0.25)
    P = np.linalg.inv(K)
    P -= np.outer(P.sum(0), P.sum(0)) / P.sum()
    np.testing.assert_allclose(mean, Z - noise * (P @ Z), rtol=1e-12)
    np.testing.assert_allclose(variance, noise - noise**2 * np.diag(P), rtol=1e-10, atol=1e-14)
    weighted = Kriging(variogram, of="field", tolerance=1e-13).fit(COORDINATES, Z, 1.0 / (noise + 1.0))
    np.testing.assert_allclose(weighted.field_.errors, noise + 1.0, rtol=1e-14)


# ------------------------------------------------------------------------------------------------- inputs of newcomers


def test_values_and_coordinates_in_other_forms_are_refused_with_advice() -> None:
    kriging = Kriging(EXPONENTIAL)
    with pytest.raises(InputError, match=r"got the text 'zinc'. Pass the column itself.*`read_samples`"):
        kriging.fit(COORDINATES, "zinc")
    with pytest.raises(InputError, match=r"got one array of shape \(6, 2\). Pass its columns: tuple\(array.T\)"):
        kriging.fit(X, Z)
    with pytest.raises(InputError, match="expected a Kriging that is not fitted, such as Kriging"):
        Cokriging(EXPONENTIAL)  # type: ignore[arg-type]


def test_weights_of_verdes_cross_validation_are_none() -> None:
    kriging = Kriging(EXPONENTIAL)
    without = kriging.fit(COORDINATES, Z, weights=(None,)).predict((1.0, 1.0))
    assert float(without) == float(kriging.fit(COORDINATES, Z).predict((1.0, 1.0)))
    verde = pytest.importorskip("verde")
    scores = verde.cross_val_score(kriging, COORDINATES, Z, cv=KFold(3), scoring="neg_mean_squared_error")
    expected = [
        -np.mean((kriging.fit(tuple(X[rows].T), Z[rows]).predict(tuple(X[out].T)) - Z[out]) ** 2)
        for rows, out in KFold(3).split(X)
    ]
    np.testing.assert_allclose(scores, expected)


def test_degrees_near_greenwich_are_taken_as_a_plane_with_a_warning(rng: np.random.Generator) -> None:
    places, values = rng.uniform((5.0, 46.0), (9.0, 50.0), (20, 2)).T, rng.standard_normal(20)
    with pytest.warns(UserWarning, match=r"may be longitude and latitude \(5\..*Pass `crs` EPSG:4326"):
        Kriging(EXPONENTIAL).fit(tuple(places), values)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Kriging(EXPONENTIAL, metric="plane").fit(tuple(places), values)
        # A local square of 10 is no part of the globe that anybody would take for one.
        Kriging(EXPONENTIAL).fit(tuple(places - places.min(axis=1, keepdims=True)), values)
