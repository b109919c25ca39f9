"""Values of users: masked, of other types, or of other shapes; and places that have several coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.kriging import Kriging, Variogram
from dkgp.kriging.grids import Grid
from dkgp.kriging.space import Space, coordinate_numbers

MODEL = Variogram("exponential", psill=1.0, range=3.0, nugget=0.1)
X, Y = np.array([0.0, 1.0, 0.0, 3.0, 2.0, 4.0]), np.array([0.0, 0.0, 2.0, 1.0, 3.0, 4.0])
Z = np.array([1.0, 2.0, 0.5, 3.0, 2.5, 4.0])
HIDDEN = np.array([0, 0, 0, 0, 0, 1], dtype=bool)


def _fit(x: Any = X, y: Any = Y, z: Any = Z, *, kind: str = "ordinary", **more: Any) -> Kriging:
    names = ("c",) if "covariates" in more else ()
    return Kriging(MODEL, kind="universal" if names else kind, covariates=names).fit((x, y), z, **more)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"z": np.ma.array(Z, mask=HIDDEN)}, r"data z is missing or infinite at 1 of 6 samples, first in row 5"),
        ({"x": np.ma.array(X, mask=HIDDEN)}, "the coordinate easting is nan in row 5"),
        ({"noise": np.ma.array(Z, mask=HIDDEN)}, "`noise` has a finite number"),
        ({"covariates": [np.ma.array(Z**2, mask=HIDDEN)]}, "the covariate c is missing at 1 of 6 samples"),
        ({"z": Z + 1j}, "data holds complex numbers"),
        ({"z": ["much"] * 6}, "data holds text where a number belongs, such as 'much'"),
        ({"y": ["north"] * 6}, "a coordinate holds text"),
        ({"z": np.datetime64("2020-01-01") + np.arange(6)}, "data holds dates"),
        ({"x": [], "y": [], "z": []}, "there are no samples"),
        (
            {"x": X.reshape(3, 2), "y": Y.reshape(3, 2), "z": Z.reshape(2, 3)},
            r"data has shape \(2, 3\); expected that of the coordinates, \(3, 2\)",
        ),
    ],
)
def test_values_that_are_no_numbers_of_the_samples_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        _fit(**wrong)


def test_points_that_are_masked_are_refused() -> None:
    with pytest.raises(InputError, match="the coordinate easting is nan in row 5"):
        _fit().predict((np.ma.array(X, mask=HIDDEN), Y))


def test_values_of_one_dimension_go_with_coordinates_of_any_shape() -> None:
    expected = _fit().predict((X, Y))
    assert np.array_equal(_fit(X.reshape(3, 2), Y.reshape(3, 2)).predict((X, Y)), expected)
    assert np.array_equal(_fit(z=Z[:, None]).predict((X, Y)), expected)


def test_the_mean_is_one_number() -> None:
    with pytest.raises(InputError, match="`mean` is one finite number"):
        Kriging(MODEL, kind="simple", mean=Z).fit((X, Y), Z)  # type: ignore[arg-type]


@pytest.mark.parametrize("degree", [1, 2])
def test_a_mean_of_a_constant_coordinate_is_refused_by_name(degree: int) -> None:
    kriging = Kriging(MODEL, kind="universal", degree=degree)
    with pytest.raises(InputError, match="mean (has no coefficient of|cannot tell) .*northing"):
        kriging.fit((np.append(X, X + 10.0), np.full(12, 7.0)), np.append(Z, Z))


def test_one_sample_determines_a_field_of_known_mean_alone() -> None:
    with pytest.raises(
        InputError, match=r"a mean of 1 coefficient needs more than 1 sample; got 1\. Take a known mean"
    ):
        Kriging(MODEL).fit(([1.0], [2.0]), [3.0])
    assert Kriging(MODEL, kind="simple", mean=0.0).fit(([1.0], [2.0]), [3.0]).predict((1.0, 2.0)) == pytest.approx(
        3 / 1.1
    )


def test_masked_dates_are_missing() -> None:
    dates = np.ma.array(np.datetime64("1970-01-02") + np.arange(2), mask=[False, True])
    assert np.array_equal(coordinate_numbers(dates), [1.0, np.nan], equal_nan=True)


@pytest.mark.parametrize("metric", ["sphere", "wgs84"])
def test_a_place_on_the_globe_has_one_position(metric: Any) -> None:
    space = Space(2, metric)
    longitude = np.array([180.0, -180.0, 540.0, 190.0, -170.0, 0.0, 360.0, 0.0, 45.0, 0.0, 10.5])
    latitude = np.array([50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 90.0, 90.0, -90.0, -90.0])
    places = space.places((longitude, latitude))
    for same in (slice(0, 3), slice(3, 5), slice(5, 7), slice(7, 9), slice(9, 11)):
        assert len(np.unique(places[same], axis=0)) == 1, places[same]


def test_the_field_at_the_date_line_is_the_sample_there() -> None:
    model = Variogram("exponential", psill=1.0, range=100.0, nugget=0.1, nugget_is="microscale")
    pytest.importorskip("pyproj")
    kriging = Kriging(model, crs="EPSG:4326", of="field").fit(
        ([180.0, 179.5, -179.0], [50.0, 50.5, 51.0]), [7.0, 1.0, 2.0]
    )
    assert kriging.predict((-180.0, 50.0)) == 7.0


@pytest.mark.parametrize(
    "size", [{"shape": (10**9, 10**9)}, {"spacing": 1e-9}, {"spacing": 5e-324}, {"shape": (1, 2**26 + 1)}]
)
def test_a_grid_that_no_disk_holds_is_refused_at_once(size: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"the grid has .* cells; expected at most 67,108,864 rows"):
        Grid.of((0.0, 1e3, 0.0, 1e3), **size)


def test_a_region_beyond_float64_is_refused() -> None:
    with pytest.raises(InputError, match="`region` is too wide"):
        Grid.of((-1e308, 1e308, 0.0, 1.0), shape=(2, 2))
